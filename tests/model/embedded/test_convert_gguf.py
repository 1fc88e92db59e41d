"""Conversion of GGUF files: no bit is lost, and what cannot be converted is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.gguf_files import HEADS, KV_HEADS, assert_same_bits, interleave, write_tiny_gguf
from kvfw.errors import UnsupportedError
from kvfw.model.embedded.gguf import convert_gguf, split_halves


def test_split_halves_undoes_the_interleaving() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    assert np.array_equal(split_halves(interleave(rows, 3), 3), rows)


def test_conversion_keeps_every_bit(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    convert_gguf(source, tmp_path / "out")
    assert_same_bits(source, tmp_path / "out", HEADS, KV_HEADS)


def test_converted_folder_loads(tmp_path: Path) -> None:
    from kvfw.model.load.load import load_model

    convert_gguf(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
    loaded = load_model(str(tmp_path / "out"), device="cpu")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["dtype"] == "float32"
    assert config["rope_parameters"] == {"rope_theta": 10_000.0, "rope_type": "default"}
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    text = "he  12\n\n3 he"
    ids = loaded.tokenizer(text)["input_ids"]
    assert loaded.tokenizer.convert_ids_to_tokens(ids) == ["he", "ĠĠ", "1", "2", "ĊĊ", "3", "Ġ", "he"]
    assert loaded.tokenizer.decode(ids) == text


def test_unknown_cutting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="gpt2/llama-bpe"):
        convert_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", pre="llama-bpe"), tmp_path / "out")


def test_missing_tensor_is_refused(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "tiny.gguf", skip="blk.1.ffn_up.weight")
    with pytest.raises(UnsupportedError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        convert_gguf(source, tmp_path / "out")


def test_scaled_rope_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="yarn"):
        convert_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", scaling="yarn"), tmp_path / "out")
