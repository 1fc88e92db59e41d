"""Checks that a prompt is long enough to compress and short enough for the model, and that parts fit both."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from kvfw.core.compose.budget import Amount
from kvfw.core.compress.allocation import mean_budgets
from kvfw.core.compress.compressor import Compressor, check_pools
from kvfw.errors import PromptError
from kvfw.model.load.load import OpenModel
from kvfw.runner.plan.config import CompressionConfig


def check_length(what: str, tokens: int, config: CompressionConfig, amounts: tuple[Amount, ...]) -> None:
    """Checks that the prompt has a middle to compress and that every amount keeps a slot of it.

    Args:
        what: names the prompt in the error, such as ``"sample 80-50-0 has 80 tokens, which"``.
        tokens: number of tokens that are compressed.

    Raises:
        PromptError, BudgetError: it is too short; the message gives the tokens or slots needed.
    """
    always = config.sinks + config.recent
    for amount in amounts:
        needed = always + amount.least_middle()
        if tokens < needed:
            raise PromptError(
                f"{what} is too short to compress at {amount}: {config.sinks} sinks and {config.recent} recent tokens "
                f"are always kept, so at least {needed} tokens are needed. Use a longer one, keep more of it, or keep "
                "fewer sinks and recent tokens (--sinks, --recent)"
            )
        amount.middle_slots(tokens - always, config.sinks, config.recent)


def check_positions(what: str, tokens: int, new_tokens: int, model: str, model_config: Any) -> None:
    """Checks that prompt and response fit into the model's positions and do not cross a LongRoPE switch.

    Raises:
        PromptError: they do not; the message gives the largest prompt that fits.
    """
    from kvfw.model.session.longrope import table_switch

    text = model_config.get_text_config(decoder=True)
    switch = table_switch(text)
    if switch is not None and tokens <= switch < tokens + new_tokens:
        raise PromptError(
            f"{what} {tokens} tokens and {new_tokens} new ones cross the {switch} tokens beyond which model {model} "
            f"rotates keys by other frequencies (LongRoPE); use at most {max(switch - new_tokens, 0)} or more than "
            f"{switch} tokens"
        )
    limit = getattr(text, "max_position_embeddings", None)
    if limit is not None and tokens + new_tokens > limit:
        way_out = f"use at most {limit - new_tokens} tokens" if limit > new_tokens else "ask for fewer new tokens"
        raise PromptError(
            f"{what} {tokens} tokens and {new_tokens} new ones exceed the {limit} positions of model {model}; {way_out}"
        )


def check_parts(bound: Iterable[Compressor], opened: OpenModel, prompts: Sequence[Sequence[int]]) -> None:
    """Checks what compositions ask of model and prompts: texts and lengths of probes, layers, budgets by shape.

    Args:
        bound: the compositions, bound to their amounts.
        opened: the model; its weights are not read.
        prompts: ids of the tokens that are compressed.

    Raises:
        OptionError: a probe's text file does not exist.
        UnsupportedError: a calibration file of a model of another shape.
        PromptError: a prompt and a probe exceed the model's positions.
        SpecError: no layer that the composition compresses has full attention.
        RunError: an allocator that looks at shapes alone does not fit the model, as a table of other heads.
    """
    # They import transformers, which a request that is wrong in itself does not have to wait for.
    from kvfw.model.cache.calibrated import check_calibrated
    from kvfw.model.cache.fingerprint import shape

    for one in bound:
        check_calibrated(one.composition.parts, lambda: shape(opened.skeleton))
        _check_probes(one, opened, max(prompts, key=len))
        # The model's layers are looked at only where that can find a fault: it takes a moment.
        if any(
            each.policy.layers or (each.policy.allocator is not None and each.scope == "shape") for each in one.rules
        ):
            heads = opened.compressed_heads
            check_pools(one, heads)
            lengths = torch.tensor(sorted({len(prompt) for prompt in prompts}))
            mean_budgets(one, one.middle_slots(lengths), one.middle(lengths), heads)


def _check_probes(one: Compressor, opened: OpenModel, longest: Sequence[int]) -> None:
    from kvfw.model.session.probing import check_probes, probe_texts

    check_probes(one.needs, opened.tokenizer, None)
    limit = getattr(opened.config.get_text_config(decoder=True), "max_position_embeddings", None)
    for name in sorted(one.needs.probes):
        fed = max(map(len, probe_texts(name, longest, opened.tokenizer, None)))
        if limit is not None and len(longest) + fed > limit:
            raise PromptError(
                f"a prompt of {len(longest)} tokens and the {fed} tokens of the probe of {one.composition} exceed the "
                f"{limit} positions of model {opened.source.name}; use shorter prompts, or no probe"
            )
