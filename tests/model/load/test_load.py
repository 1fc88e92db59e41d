"""Naming and loading models: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvfw.errors import FetchError, OptionError, RequestError, UnknownNameError, UnsupportedError
from kvfw.model.load.devices import choose_device, choose_dtype
from kvfw.model.load.hub import HubAnswer, ask_hub, explain_hub_failure
from kvfw.model.load.load import LoadedModel, OpenModel, load_model, open_model
from kvfw.model.load.sources import ModelSource, resolve_model

NOBODY_LISTENS = "http://127.0.0.1:9"


def offline(name: str) -> HubAnswer:
    return HubAnswer(reachable=False, trouble="ConnectError: no route")


@pytest.fixture(scope="module")
def saved_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a one-layer Llama stored in bfloat16, and a tokenizer without a padding token."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    untyped: Any = transformers
    folder = tmp_path_factory.mktemp("models") / "llama"
    config = transformers.LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    untyped.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    backend = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "b": 2}, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    untyped.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>").save_pretrained(folder)
    return folder


@pytest.fixture
def llama(saved_llama: Path, tmp_path: Path) -> Path:
    """A copy of the Llama folder that the test may change."""
    return Path(shutil.copytree(saved_llama, tmp_path / "llama"))


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# --- names -----------------------------------------------------------------------------------------------


def test_embedded_name_resolves_without_fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFW_CACHE", str(tmp_path))
    source = resolve_model("smollm2-135m")
    assert (source.name, source.kind) == ("smollm2-135m", "embedded")
    assert Path(source.location).is_relative_to(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_resolves_also_below_home(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(llama)) == ModelSource(str(llama), str(llama.resolve()), "folder")
    monkeypatch.setenv("HOME", str(llama.parent))
    monkeypatch.setenv("USERPROFILE", str(llama.parent))
    assert resolve_model("~/llama") == ModelSource("~/llama", str(llama.resolve()), "folder")


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-1.5B-Instruct", "a/b", "meta-llama/Llama-3.2-1B"])
def test_hub_id_resolves_without_asking(name: str) -> None:
    assert resolve_model(name) == ModelSource(name, name, "hub")


@pytest.mark.parametrize("name", ["gpt2", "", "a/b/c", "/no/such/folder", "./absent", "~nobody-here/x", "a b", "\0"])
def test_other_names_are_refused_with_the_three_forms(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        resolve_model(name)
    message = str(caught.value)
    assert repr(name) in message
    assert "embedded one (smollm2-135m)" in message
    assert "folder with config.json" in message
    assert "owner/model" in message


def test_close_name_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean smollm2-135m\?"):
        resolve_model("smolm2-135")


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_folder_with_pickled_weights_only(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    with pytest.raises(UnsupportedError, match="no safetensors weights"):
        resolve_model(str(llama))


def test_sentence_encoder_is_no_language_model() -> None:
    with pytest.raises(UnsupportedError, match="sentence encoder"):
        _ = open_model("minilm-l6").config


# --- loading a folder ------------------------------------------------------------------------------------


def test_folder_loads_ready_to_run(saved_llama: Path) -> None:
    import torch

    loaded = load_model(str(saved_llama), device="cpu")
    assert loaded.source.kind == "folder"
    assert loaded.config is loaded.model.config
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert loaded.tokenizer.pad_token == "<end>"
    batch: Any = loaded.tokenizer(["a b", "a"], padding=True)
    assert batch["input_ids"] == [[1, 2], [0, 1]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_is_obeyed(saved_llama: Path, dtype: str) -> None:
    loaded = load_model(str(saved_llama), dtype=dtype, device="cpu")
    assert {str(p.dtype) for p in loaded.model.parameters()} == {f"torch.{dtype}"}


def test_auto_dtype_depends_on_the_device() -> None:
    import torch

    assert choose_dtype("auto", torch.device("cpu")) is torch.float32
    assert choose_dtype("auto", torch.device("cuda")) == "auto"


def test_attention_implementation_is_passed_on(saved_llama: Path) -> None:
    loaded = load_model(str(saved_llama), device="cpu", attn_implementation="eager")
    assert getattr(loaded.config, "_attn_implementation", None) == "eager"


def test_config_and_tokenizer_need_no_weights(llama: Path) -> None:
    (llama / "model.safetensors").write_bytes(b"")
    assert open_model(str(llama)).config.model_type == "llama"
    assert open_model(str(llama)).tokenizer("a b")["input_ids"] == [1, 2]


# --- refusals --------------------------------------------------------------------------------------------


def test_unknown_dtype_lists_the_allowed(saved_llama: Path) -> None:
    with pytest.raises(OptionError, match=r"'int8'.*auto, float32, float16, bfloat16"):
        load_model(str(saved_llama), dtype="int8")


@pytest.mark.parametrize("device", ["toaster", "cuda:99", "meta", "cpu:x", ""])
def test_device_that_is_not_there(device: str) -> None:
    with pytest.raises(OptionError, match=r"cannot be used .* use auto, cpu, cuda"):
        choose_device(device)


def test_auto_device_is_usable() -> None:
    import torch

    assert torch.ones(1, device=choose_device("auto")).item() == 1.0


@pytest.mark.parametrize("name", ["fastest", "someone/kernel"])
def test_unknown_attention_lists_the_allowed(saved_llama: Path, name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}'.*eager.*sdpa"):
        load_model(str(saved_llama), attn_implementation=name)


def test_encoder_decoder_is_refused(llama: Path) -> None:
    change_config(llama, model_type="t5", is_encoder_decoder=True, architectures=["T5ForConditionalGeneration"])
    with pytest.raises(UnsupportedError, match="encoder-decoder"):
        _ = open_model(str(llama)).config


@pytest.mark.parametrize(
    ("model_type", "architecture"), [("bert", "BertForMaskedLM"), ("vit", "ViTForImageClassification")]
)
def test_other_kinds_are_refused(llama: Path, model_type: str, architecture: str) -> None:
    change_config(llama, model_type=model_type, architectures=[architecture])
    with pytest.raises(UnsupportedError, match="not a causal language model"):
        _ = open_model(str(llama)).config


def test_unknown_architecture_is_one_error(llama: Path) -> None:
    change_config(llama, model_type="no-such-type")
    with pytest.raises(UnsupportedError, match="no-such-type"):
        _ = open_model(str(llama)).config


def test_broken_config_is_one_error(llama: Path) -> None:
    (llama / "config.json").write_text("{")
    with pytest.raises(UnsupportedError, match="cannot be loaded"):
        _ = open_model(str(llama)).config


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ({"rope_parameters": {"rope_type": "nosuch", "factor": 2.0}}, "KeyError: 'nosuch'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}, "TypeError"),
        ({"num_key_value_heads": 0}, "ZeroDivisionError"),
        ({"num_attention_heads": 3}, "attention heads"),
        ({"dtype": "float7"}, "float7"),
    ],
)
def test_a_value_that_transformers_cannot_use_is_one_error(llama: Path, fault: dict[str, Any], word: str) -> None:
    change_config(llama, **fault)
    with pytest.raises(UnsupportedError, match=word) as refused:
        load_model(str(llama), device="cpu")
    assert "Look at config.json" in str(refused.value)
    assert "'" + str(llama) + "'" in str(refused.value)


def test_a_broken_tokenizer_is_one_error_about_its_own_files(llama: Path) -> None:
    (llama / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(UnsupportedError, match="the tokenizer files of"):
        _ = open_model(str(llama)).tokenizer


def test_broken_weights_are_one_error(llama: Path) -> None:
    (llama / "model.safetensors").write_bytes(b"garbage" * 10)
    with pytest.raises(UnsupportedError, match="cannot be loaded"):
        load_model(str(llama), device="cpu")


def test_missing_weights_are_not_made_up(llama: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(llama / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, llama / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedError, match=r"lacks 1 weights.*lm_head\.weight"):
        load_model(str(llama), device="cpu")


def test_code_of_the_model_does_not_run_unasked(llama: Path) -> None:
    (llama / "configuration_own.py").write_text("raise SystemExit('it ran')\n")
    change_config(llama, model_type="own", auto_map={"AutoConfig": "configuration_own.OwnConfig"})
    with pytest.raises(UnsupportedError, match="trust_remote_code=True"):
        _ = open_model(str(llama)).config


# --- the hub ---------------------------------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for four repositories."""

    def do_GET(self) -> None:
        name = self.path.partition("/api/models/")[2].partition("?")[0]
        if name == "some/slow":
            time.sleep(2)
        if name == "some/absent":
            self._answer(404, {"error": "Repository not found"}, code="RepoNotFound")
        else:
            file = "pytorch_model.bin" if name == "some/pickled" else "model.safetensors"
            self._answer(200, {"id": name, "modelId": name, "siblings": [{"rfilename": file}]})

    def _answer(self, status: int, body: dict[str, object], code: str = "") -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """The address of a small hub on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_hub_answers(hub: str) -> None:
    assert ask_hub("some/model", endpoint=hub) == HubAnswer(reachable=True, has_safetensors=True)
    assert ask_hub("some/pickled", endpoint=hub) == HubAnswer(reachable=True, has_safetensors=False)


def test_hub_does_not_know_the_name(hub: str) -> None:
    with pytest.raises(UnknownNameError, match=r"no model 'some/absent'.*check the spelling"):
        ask_hub("some/absent", endpoint=hub)


def test_silent_hub_is_not_waited_for(hub: str) -> None:
    answer = ask_hub("some/slow", endpoint=hub, timeout_s=0.2)
    assert not answer.reachable
    assert "Timeout" in answer.trouble


def test_unreachable_hub_is_an_answer() -> None:
    answer = ask_hub("some/model", endpoint=NOBODY_LISTENS)
    assert not answer.reachable
    assert answer.trouble


def test_offline_and_not_cached_is_one_error() -> None:
    opened = open_model("nobody/nothing", ask=offline)
    for what in (lambda: opened.config, lambda: opened.tokenizer, opened.load):
        with pytest.raises(FetchError, match=r"'nobody/nothing' is not complete .* no route"):
            what()


def test_an_open_model_asks_the_hub_once_and_reads_each_thing_once(saved_llama: Path) -> None:
    asked: list[str] = []

    def ask(name: str) -> HubAnswer:
        asked.append(name)
        return offline(name)

    opened = OpenModel(ModelSource("some/llama", str(saved_llama), "hub"), ask=ask)
    assert not asked
    assert opened.config is opened.config
    loaded = opened.load(device="cpu")
    assert loaded.tokenizer is opened.tokenizer
    assert opened.load(device="cpu") is loaded
    assert opened.load(device="cpu", dtype="bfloat16").model is not loaded.model
    assert {str(weight.dtype) for weight in loaded.model.parameters()} == {"torch.float32"}
    assert asked == [str(saved_llama)]


def test_gated_model_says_what_to_do() -> None:
    from huggingface_hub.errors import GatedRepoError

    error = OSError("403")
    error.__cause__ = GatedRepoError.__new__(GatedRepoError)
    answer = explain_hub_failure("some/gated", HubAnswer(reachable=True), error)
    assert isinstance(answer, FetchError)
    assert "accept its terms on https://huggingface.co/some/gated" in str(answer)


def test_cached_hub_model_loads_offline_and_others_fail_soon(saved_llama: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--some--llama" / "snapshots" / ("0" * 40)
    shutil.copytree(saved_llama, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    program = (
        "import time; from kvfw.errors import FetchError; from kvfw.model.load.load import load_model\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM\n"
        "start_s = time.monotonic(); print(load_model('some/llama', device='cpu').source.kind)\n"
        "try: load_model('some/other', device='cpu')\n"
        "except FetchError as error: print(type(error).__name__)\n"
        "print(time.monotonic() - start_s)\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "HF_HUB_CACHE"}
    environ |= {"HF_HOME": str(tmp_path), "HF_ENDPOINT": NOBODY_LISTENS}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    kind, failure, took_s = done.stdout.split()
    assert (kind, failure) == ("hub", "FetchError")
    assert float(took_s) < 20  # two models; each question to the hub has at most 5 s


# --- the true model --------------------------------------------------------------------------------------


@pytest.mark.real
def test_embedded_model_loads_in_three_seconds(smollm: LoadedModel) -> None:
    start_s = time.perf_counter()
    loaded = load_model("smollm2-135m", device="cpu")
    took_s = time.perf_counter() - start_s
    assert loaded.source.kind == "embedded"
    assert loaded.config.model_type == "llama"
    assert took_s <= 3.0


def test_a_tokenizer_for_cutting_prompts_does_not_warn_of_long_texts(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import transformers.utils.logging as untyped

    logging: Any = untyped
    logging.enable_propagation()
    try:
        tokenizer = open_model(str(tiny_folder)).tokenizer
        tokenizer.model_max_length = 5
        with caplog.at_level("WARNING"):
            assert len(tokenizer.encode("a b c d e f g h i j")) > 5
    finally:
        logging.disable_propagation()
    assert "longer than" not in caplog.text
