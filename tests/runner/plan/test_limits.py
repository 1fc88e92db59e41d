"""What compositions ask of model and prompts is checked before any weights load."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.tiny_folder import write_tiny_folder
from helpers.tiny_models import configuration
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import Compressor, compressor
from kvfw.errors import KvfwError, OptionError, PromptError, RunError, SpecError
from kvfw.model.load.load import OpenModel, open_model
from kvfw.runner.plan.limits import check_parts

PROMPT = list(range(3, 203))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    """Two layers of two KV heads, 300 positions; its weights cannot be read."""
    folder = write_tiny_folder(tmp_path_factory.mktemp("tiny"), positions=300)
    (folder / "model.safetensors").write_bytes(b"no weights")
    return open_model(str(folder))


def of(composition: str) -> Compressor:
    return compressor(parse(composition), amount(ratio=4), sinks=4, recent=8, depth=4)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([[1, 2]], "1 layers, none for layer 1"),
        ([[1, 2], [1, 2, 3]], "3 entries for layer 1, which has 2 KV heads"),
    ],
)
def test_a_table_of_another_model_is_refused(opened: OpenModel, tmp_path: Path, layers: Any, said: str) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"layers": layers}))
    with pytest.raises(RunError, match=said):
        check_parts([of(f"snapkv@table(file={file})")], opened, [PROMPT])


@pytest.mark.parametrize(
    ("composition", "error", "said"),
    [
        ("kvzip(probe=nowhere.txt)", OptionError, "neither 'repeat' nor a text file"),
        ("kvzip", PromptError, "of the probe of kvzip exceed the 300 positions"),
    ],
)
def test_a_probe_that_cannot_be_read_is_refused(
    opened: OpenModel, composition: str, error: type[KvfwError], said: str
) -> None:
    with pytest.raises(error, match=said):
        check_parts([of(composition)], opened, [PROMPT])


def test_what_fits_is_let_pass(opened: OpenModel) -> None:
    check_parts([of("snapkv@pyramid"), of("[0]snapkv;[1-]full"), of("kvzip")], opened, [PROMPT[:100]])


def test_layers_with_sliding_windows_alone_are_refused(opened: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = open_model(opened.source.name)
    monkeypatch.setitem(vars(mixed), "config", configuration("gemma3"))
    with pytest.raises(SpecError, match="have sliding windows"):
        check_parts([of("[0]snapkv;[1-]full")], mixed, [PROMPT])
    check_parts([of("[0-1]snapkv;[2-]full")], mixed, [PROMPT])
