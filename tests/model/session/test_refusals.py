"""Mistakes of callers of ``attach`` that would otherwise give nonsense or somebody else's error."""

from typing import Any

import pytest
import torch

from helpers.tiny_models import build, forward, prompt
from kvfw.core.compress.allocation import EvenSplit
from kvfw.errors import BudgetError, KvfwError, OptionError, SpecError, UnsupportedError
from kvfw.model.compat.versions import passed
from kvfw.model.session.attach import attach


def test_padding_on_the_right_is_refused_with_the_way_out() -> None:
    model = build("llama")
    mask = torch.ones(2, 60, dtype=torch.long)
    mask[1, 50:] = 0
    with pytest.raises(UnsupportedError, match="padding_side='left'"), attach(model, "snapkv", ratio=4) as cache:
        model(prompt(60, rows=2), attention_mask=mask, **passed(model, cache), use_cache=True)


@pytest.mark.parametrize("chunk", [7, 25, 59])
def test_padding_on_the_right_of_a_prompt_in_pieces_is_refused(chunk: int) -> None:
    # In pieces of 7 and of 25 the last one is all padding for the second row, in pieces of 59 it is a single token.
    model = build("llama")
    mask = torch.ones(2, 60, dtype=torch.long)
    mask[1, 45:] = 0
    *pieces, last = torch.split(prompt(60, rows=2), chunk, dim=1)
    with attach(model, "snapkv", ratio=4, prompt_tokens=60) as cache:
        for piece in pieces:
            forward(model, piece, cache, attention_mask=mask[:, : cache.get_seq_length() + piece.shape[1]])
        with pytest.raises(UnsupportedError, match="padding_side='left'"):
            forward(model, last, cache, attention_mask=mask)


def test_something_else_than_a_model_is_refused() -> None:
    untyped: Any = "smollm2-135m"
    with pytest.raises(UnsupportedError, match=r"pass \.model"), attach(untyped, "snapkv", ratio=4):
        pytest.fail("attached")


@pytest.mark.parametrize("value", [1.5, "x", True, -1])
def test_numbers_of_tokens_are_whole_numbers(value: Any) -> None:
    with pytest.raises(BudgetError, match="recent is"), attach(build("llama"), "snapkv", ratio=4, recent=value):
        pytest.fail("attached")


def test_prompt_tokens_is_at_least_one() -> None:
    with (
        pytest.raises(BudgetError, match="prompt_tokens is 0"),
        attach(build("llama"), "snapkv", ratio=4, prompt_tokens=0),
    ):
        pytest.fail("attached")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        *(({"prompt_tokens": value}, BudgetError, "prompt_tokens is .* whole number") for value in (1.5, True, "a")),
        ({"allocator": 3}, OptionError, "allocator is 3; it is an object with a method allocate"),
        ({"allocator": EvenSplit}, OptionError, "allocator is <class"),
        ({"tokenizer": "x"}, OptionError, "tokenizer is 'x'; it is the model's tokenizer"),
        ({"sinks": "4"}, BudgetError, "sinks is '4'; it is a whole number"),
        ({"recompress": "yes"}, OptionError, "recompress is 'yes'; it is True or False"),
    ],
)
def test_options_of_a_wrong_kind_are_refused_at_once(options: Any, error: type[KvfwError], words: str) -> None:
    with pytest.raises(error, match=words), attach(build("llama"), "snapkv", ratio=4, **options):
        pytest.fail("attached")


def test_layers_with_sliding_windows_alone_are_nothing_to_compress() -> None:
    with pytest.raises(SpecError, match="have sliding windows"), attach(build("gemma3"), "[0]snapkv;[1-]full", ratio=4):
        pytest.fail("attached")


def test_moments_are_counted_from_the_prompt_on() -> None:
    model, options = build("llama"), {"ratio": 4, "sinks": 4, "recent": 8}
    with attach(model, "snapkv", **options) as cache, torch.inference_mode():  # type: ignore[arg-type]
        forward(model, prompt(60), cache)
    with (
        pytest.raises(UnsupportedError, match="moments of queries"),
        attach(model, "expected", cache=cache, compress_every=5, **options),  # type: ignore[arg-type]
    ):
        pytest.fail("attached")
