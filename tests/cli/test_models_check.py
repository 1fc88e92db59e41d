"""``kvfw models check``: what is seen in a model, and why one is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers

from kvfw.cli.main import run

LLAMA = """\
{name}: LlamaForCausalLM (llama), 2 layers, 4 query heads, 2048 positions
layers 0-1
  full attention: compressed
  2 KV heads of size 8
  RoPE default, half layout, 8 of 8 coordinates, base 10000
bytes per token (float32): 256 in layers that are compressed
"""


def save(folder: Path, name: str, **settings: Any) -> str:
    """A configuration of that class in a folder of its own, without weights."""
    untyped: Any = transformers
    getattr(untyped, name)(**settings).save_pretrained(folder)
    return str(folder)


def test_a_folder_with_weights(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "check", str(tiny_folder)]) == 0
    assert capsys.readouterr().out == LLAMA.format(name=tiny_folder)


def test_a_configuration_alone(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_bytes((tiny_folder / "config.json").read_bytes())
    for name in (tmp_path, tmp_path / "config.json"):
        assert run(["models", "check", str(name)]) == 0
        assert capsys.readouterr().out == LLAMA.format(name=name)


def test_layers_of_several_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The real shape: nothing of its billions of weights is made.
    name = save(tmp_path, "GptOssConfig", num_hidden_layers=4)
    assert run(["models", "check", name, "--dtype", "bfloat16"]) == 0
    said = capsys.readouterr().out
    assert (
        "layers 0, 2\n  sliding window of 128 tokens: left as it is; heads have attention sinks of their own\n" in said
    )
    assert "layers 1, 3\n  full attention: compressed; heads have attention sinks of their own\n" in said
    assert "RoPE yarn, half layout, 64 of 64 coordinates, base 150000, attention factor 1.347" in said
    # Two layers of 8 heads of 64 + 64 numbers of 2 bytes.
    assert "bytes per token (bfloat16): 4096 in layers that are compressed\n  and 4096 in sliding-window layers" in said


def test_capped_logits_and_partial_rotation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "check", save(tmp_path / "gemma2", "Gemma2Config", num_hidden_layers=2)]) == 0
    assert "full attention: compressed; logits capped at 50" in capsys.readouterr().out
    assert run(["models", "check", save(tmp_path / "glm4", "Glm4Config", num_hidden_layers=2)]) == 0
    assert "interleaved layout, 64 of 128 coordinates" in capsys.readouterr().out
    assert run(["models", "check", save(tmp_path / "smollm3", "SmolLM3Config", num_hidden_layers=4)]) == 0
    assert "layer 3\n  full attention: compressed\n  4 KV heads of size 128\n  no rotation" in capsys.readouterr().out


def test_json_has_every_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = save(tmp_path, "Gemma3TextConfig", num_hidden_layers=6, sliding_window=512)
    assert run(["models", "check", name, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["refused"] is None
    assert [layer["compressed"] for layer in values["layers"]] == [False] * 5 + [True]
    assert values["layers"][0]["window"] == 512
    assert values["layers"][0]["rope"]["base"] == 10_000
    assert values["layers"][5]["rope"] == {
        "type": "default",
        "layout": "half",
        "rotary_dim": 256,
        "base": 1_000_000,
        "attention_factor": 1,
        "settings": {},
    }
    # One layer of 4 heads of 256 + 256 numbers of 4 bytes, and five.
    assert (values["compressed_bytes_per_token"], values["sliding_bytes_per_token"]) == (8192, 40960)


REFUSED = [
    ("DeepseekV3Config", "multi-head latent attention"),
    ("MambaConfig", "recurrent state"),
    ("T5Config", "encoder-decoder"),
    ("MistralConfig", "every layer of .* has a sliding window"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED)
def test_a_refused_model_says_why(config: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = save(tmp_path, config)
    assert run(["models", "check", name]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{name}: ")
    assert len(said) == 2
    assert re.search(reason, said[1])
    assert run(["models", "check", name, "--json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert values["layers"] == []
    assert said[1] == f"refused: {values['refused']}"


# What a configuration says that transformers can make nothing of, the file it starts from, and a word of the answer.
LLAMA_2 = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}
GEMMA = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 6}
QWEN = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2}
PHI = {
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "num_hidden_layers": 2,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
}
BROKEN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (LLAMA_2, {"num_attention_heads": 7}, "attention heads"),
    (LLAMA_2, {"num_attention_heads": 0}, "ZeroDivisionError"),
    (LLAMA_2, {"rope_scaling": {"rope_type": "yarn"}}, "factor"),
    (LLAMA_2, {"rope_scaling": {"rope_type": "nosuch", "factor": 2.0}}, "KeyError: 'nosuch'"),
    (LLAMA_2, {"rope_theta": "x"}, "TypeError"),
    (LLAMA_2, {"num_key_value_heads": 0}, "ZeroDivisionError"),
    (LLAMA_2, {"head_dim": 7}, "config.json"),
    (LLAMA_2, {"hidden_size": "big"}, "hidden_size"),
    (LLAMA_2, {"hidden_size": 10**12, "num_attention_heads": 1}, "config.json"),
    (LLAMA_2, {"num_hidden_layers": -2}, "num_hidden_layers is -2 and must be 1 or more"),
    (LLAMA_2, {"num_hidden_layers": 0}, "has no layers: num_hidden_layers is 0"),
    (LLAMA_2, {"dtype": "float7"}, "float7"),
    (LLAMA_2, {"architectures": 3}, "architectures in config.json .* is 3"),
    (LLAMA_2, {"architectures": [3]}, "must be a list of class names"),
    (GEMMA, {"sliding_window": None}, "TypeError"),
    (GEMMA, {"layer_types": ["full_attention"]}, "layer_types"),
    (QWEN, {"layer_types": ["nosuch", "nosuch"]}, "layer_types"),
    (PHI, {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}, "config.json"),
]


@pytest.mark.parametrize(("base", "fault", "word"), BROKEN, ids=[str(fault)[:50] for _, fault, _ in BROKEN])
def test_a_configuration_that_transformers_cannot_use_is_one_error(
    base: dict[str, Any], fault: dict[str, Any], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(base))
    assert run(["models", "check", str(tmp_path)]) == 0
    capsys.readouterr()
    (tmp_path / "config.json").write_text(json.dumps(base | fault))
    # Refused once its layers were to be made (1), or already where it was read (2).
    assert run(["models", "check", str(tmp_path)]) in (1, 2)
    both = capsys.readouterr()
    said = both.out + both.err
    assert re.search(word, said)
    assert str(tmp_path) in said
    assert "config.json" in said
    assert "Traceback" not in said


def test_eval_refuses_the_same_before_weights_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = save(tmp_path, "DeepseekV3Config")
    # No weights at all: were they asked for, the error would be another.
    (tmp_path / "model.safetensors").touch()
    assert run(["eval", "--compose", "snapkv", "--model", name]) == 2
    assert "multi-head latent attention" in capsys.readouterr().err


def test_an_unknown_name_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "check", "smollm"]) == 2
    assert "no model 'smollm'" in capsys.readouterr().err


def test_models_alone_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    assert "smollm2-135m" in capsys.readouterr().out
