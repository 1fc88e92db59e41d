"""A calibration file from the command line to an evaluation, and all the wrong files."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import kvfw
from helpers.tiny_folder import write_tiny_folder
from kvfw.core.contracts.calibration import read_calibration
from kvfw.errors import OptionError, PromptError, RequestError, SpecError, UnsupportedError
from kvfw.model.load.load import load_model
from kvfw.runner.execute.calibrate import CalibrationRequest, calibrate
from kvfw.runner.execute.evaluate import evaluate
from kvfw.runner.plan.config import EvalConfig
from kvfw.tasks import haystack


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("text") / "other.txt", random.Random(0)
    path.write_text(" ".join("".join(rng.choices("etaoinshrdlu", k=5)) for _ in range(600)))
    return path


@pytest.fixture(scope="module")
def file(tiny_folder: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tiny_folder, text, tmp_path_factory.mktemp("files") / "expected.safetensors")


def made(folder: Path, text: Path, out: Path, part: str = "expected") -> Path:
    asked = CalibrationRequest(part, text, str(folder), device="cpu", length=128, pieces=3, out=out)
    return calibrate(asked).path


def config(folder: Path, out: Path, compose: str, **more: object) -> EvalConfig:
    return EvalConfig.of(
        {
            "compose": (compose,),
            "model": str(folder),
            "contexts": (300,),
            "depths": (50,),
            "seeds": 1,
            "max_new_tokens": 2,
            "out": out,
            "device": "cpu",
            **more,
        }
    )


def test_a_run_records_the_files_digest_and_refuses_to_go_on_with_a_changed_one(
    tiny_folder: Path, text: Path, file: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.safetensors"
    own.write_bytes(file.read_bytes())
    compose = f"expected(file={own})"
    evaluate(config(tiny_folder, tmp_path / "run", compose), report=False)
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert settings["files"] == {str(own): read_calibration(str(own), "ExpectedAttention").sha256}
    evaluate(config(tiny_folder, tmp_path / "run", compose, resume=True), report=False)
    asked = CalibrationRequest("expected", text, str(tiny_folder), device="cpu", length=128, pieces=2, out=own)
    calibrate(asked)
    with pytest.raises(RequestError, match=r"files\..* there, .* asked"):
        evaluate(config(tiny_folder, tmp_path / "run", compose, resume=True), report=False)


def test_a_changed_table_is_noticed_too(tiny_folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "heads.json"
    table.write_text('{"layers": [[1, 2], [1, 1]]}')
    evaluate(config(tiny_folder, tmp_path / "run", f"snapkv@table(file={table})"), report=False)
    table.write_text('{"layers": [[1, 3], [1, 1]]}')
    with pytest.raises(RequestError, match=r"files\..* there, .* asked"):
        evaluate(config(tiny_folder, tmp_path / "run", f"snapkv@table(file={table})", resume=True), report=False)


@pytest.mark.parametrize("passage", [slice(None, 40_000), slice(-30_000, None)], ids=["its start", "its end"])
def test_a_task_refuses_a_file_made_from_its_own_text(tiny_folder: Path, tmp_path: Path, passage: slice) -> None:
    book = tmp_path / "book.txt"
    book.write_text(haystack.shipped()[passage].upper())
    own = made(tiny_folder, book, tmp_path / "own.safetensors")
    with pytest.raises(OptionError, match=r"book\.txt.* shares 100% .* the source text"):
        evaluate(config(tiny_folder, tmp_path / "run", f"expected(file={own})"))
    assert not (tmp_path / "run").exists()


def test_another_shape_is_refused_before_weights_load(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tiny_folder(tmp_path / "other")
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 3}))
    monkeypatch.setattr("kvfw.model.load.load.OpenModel.load", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(UnsupportedError, match="made with another model: layers"):
        evaluate(config(other, tmp_path / "run", f"expected(file={file})"))


def test_other_weights_are_refused_by_eval_and_attach(tiny_folder: Path, file: Path, tmp_path: Path) -> None:
    other = write_tiny_folder(tmp_path / "other")
    loaded = load_model(str(tiny_folder), device="cpu")
    torch.manual_seed(5)
    assert isinstance(loaded.config, LlamaConfig)
    model = LlamaForCausalLM(loaded.config)
    model.save_pretrained(other)
    with pytest.raises(UnsupportedError, match="the same architecture, but other weights"):
        evaluate(config(other, tmp_path / "run", f"expected(file={file})"))
    with (
        pytest.raises(UnsupportedError, match="other weights"),
        kvfw.attach(model, f"expected(file={file})", ratio=2),
    ):
        pass
    with kvfw.attach(loaded.model, f"expected(file={file})", ratio=2) as c:
        loaded.model(input_ids=torch.arange(120)[None], cache=c)
        assert all(layer.compressed for layer in c.compressed_layers())


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("qfilters", lambda data: data, "was made for ExpectedAttention, not for QFilters"),
        ("expected", lambda data: data[:-40], "is no calibration file, or a part of one"),
        ("expected", lambda data: b"", "is no calibration file"),
        ("expected", lambda data: data.replace(b'\\"version\\": 1', b'\\"version\\": 7'), "is of version 7"),
    ],
)
def test_a_wrong_file_is_one_clear_error(
    file: Path, tmp_path: Path, part: str, change: Callable[[bytes], bytes], words: str
) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(change(file.read_bytes()))
    with pytest.raises(SpecError, match=words):
        kvfw.parse(f"{part}(file={broken})")


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        kvfw.parse(f"expected(file={tmp_path}/none.safetensors)")


@pytest.mark.parametrize("part", ["kvzap", "duo", "qfilters"])
def test_every_part_can_be_calibrated_and_used(tiny_folder: Path, text: Path, tmp_path: Path, part: str) -> None:
    own = made(tiny_folder, text, tmp_path / "own.safetensors", part)
    assert {name.partition(".")[0] for name in load_file(own) if "." in name} == {"0", "1"}
    written = f"snapkv@duo(file={own})" if part == "duo" else f"{part}(file={own})"
    loaded = load_model(str(tiny_folder), device="cpu")
    with kvfw.attach(loaded.model, written, ratio=2) as cache:
        loaded.model(input_ids=torch.arange(120)[None], cache=cache)
    assert cache.report().kv_bytes > 0


def test_what_cannot_be_calibrated_is_refused(tiny_folder: Path, text: Path, file: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"snapkv.*takes a calibration file; those are .*expected.*duo"):
        made(tiny_folder, text, tmp_path / "x", "snapkv")
    with pytest.raises(OptionError, match="has a calibration file already"):
        made(tiny_folder, text, tmp_path / "x", f"expected(file={file})")
    short = tmp_path / "short.txt"
    short.write_text("too short")
    with pytest.raises(PromptError, match=r"short\.txt has \d+ tokens, and a piece has 128"):
        made(tiny_folder, short, tmp_path / "x")
