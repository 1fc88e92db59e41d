"""Continuations scored over a compressed context, against one forward of the whole text."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, cast

import pytest
import torch

from helpers.tiny_models import prompt, tiny
from kvfw.core.compose.budget import Amount, AmountKind
from kvfw.core.compose.composition import parse
from kvfw.errors import BudgetError, PromptError
from kvfw.harness.contexts import ContextCompressor, Likelihood
from kvfw.harness.sizes import HeldContext
from kvfw.model.load.load import LoadedModel
from kvfw.model.load.sources import ModelSource

CONTEXT = prompt(90)[0].tolist()
CHOICES = [[3], [7], [3, 9, 4], [3, 9, 5], [8, 1]]


def scorer(
    ratio: int, *, kind: AmountKind = "ratio", compose: str = "snapkv(window=8)", chunk: int | None = None
) -> ContextCompressor:
    model = tiny("llama")
    loaded = LoadedModel(model, cast(Any, None), cast(ModelSource, None), model.config)
    return ContextCompressor(loaded, parse(compose), Amount(kind, Fraction(ratio)), sinks=2, recent=8, chunk=chunk)


def scored(by: ContextCompressor, context: Sequence[int] = CONTEXT) -> tuple[list[Likelihood], list[HeldContext]]:
    held = list[HeldContext]()
    return by.likelihoods(context, CHOICES, held.append), held


@torch.inference_mode()
def reference(context: Sequence[int]) -> list[Likelihood]:
    """Every continuation by a forward of its own over the whole text, without a cache."""
    found = []
    for tokens in CHOICES:
        logits = tiny("llama")(torch.tensor([[*context, *tokens[:-1]]])).logits[0, -len(tokens) :].log_softmax(-1)
        total = sum(float(row[token]) for row, token in zip(logits, tokens, strict=True))
        found.append((total, logits.argmax(-1).tolist() == tokens))
    return found


def close(found: list[Likelihood], wanted: list[Likelihood]) -> bool:
    return [x for x, _ in found] == pytest.approx([x for x, _ in wanted], abs=1e-4) and [g for _, g in found] == [
        g for _, g in wanted
    ]


@pytest.mark.parametrize("chunk", [None, 16])
def test_at_ratio_1_they_are_those_of_the_whole_text(chunk: int | None) -> None:
    found, (held,) = scored(scorer(1, chunk=chunk))
    assert close(found, reference(CONTEXT))
    assert (held.tokens, held.compressed, held.kv_bytes) == (89, False, held.full_kv_bytes)


def test_the_greedy_flag_follows_the_greedy_response() -> None:
    best = int(tiny("llama")(torch.tensor([CONTEXT])).logits[0, -1].argmax())
    assert [greedy for _, greedy in scorer(1).likelihoods(CONTEXT, [[best], [best - 1]], lambda _: None)] == [
        True,
        False,
    ]


def test_compression_shows_also_in_continuations_of_one_token() -> None:
    found, (held,) = scored(scorer(8))
    differences = [abs(x - y) for (x, _), (y, _) in zip(found, reference(CONTEXT), strict=True)]
    assert min(differences) > 1e-3
    assert held.slots_per_head == 2 + 79 // 8 + 8
    assert held.full_kv_bytes / held.kv_bytes == pytest.approx(89 / held.slots_per_head)


def test_one_prefill_serves_all_continuations() -> None:
    """And those that differ in their last token alone share a forward: ([3], [7]) and ([3, 9, 4], [3, 9, 5])."""
    fed = list[int]()
    model = tiny("llama")
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        scored(scorer(4))
    finally:
        hook.remove()
    assert fed == [89, 1, 3, 2]


@pytest.mark.parametrize("length", [1, 2, 10, 12])
def test_a_context_without_a_middle_is_left_as_it_is(length: int) -> None:
    found, held = scored(scorer(4), CONTEXT[:length])
    assert close(found, reference(CONTEXT[:length]))
    assert [(each.tokens, each.compressed) for each in held] == [(length - 1, False)] * (length > 1)


@pytest.mark.parametrize(
    ("amount", "shortest"),
    [(("ratio", 4), 1 + 2 + 8 + 4), (("keep", Fraction(1, 2)), 1 + 2 + 8 + 2), (("slots", 20), 1 + 21)],
)
def test_a_task_in_which_nothing_would_shrink_is_refused(amount: tuple[AmountKind, Any], shortest: int) -> None:
    by = scorer(amount[1], kind=amount[0])
    by.check("choice", shortest)
    with pytest.raises(PromptError, match=f"nothing in task choice .* has {shortest - 1} tokens.* it takes {shortest}"):
        by.check("choice", shortest - 1)
    # What is accepted is what really shrinks.
    assert [held.compressed for held in scored(by, CONTEXT[:shortest])[1]] == [True]


def test_an_amount_that_keeps_everything_or_nothing() -> None:
    scorer(1).check("choice", 5)
    with pytest.raises(BudgetError, match="slots=10 leaves 0 slots"):
        scorer(10, kind="slots").check("choice", 500)
