"""Checks that a prompt is long enough to compress and short enough for the model, and that probes have their texts."""

from collections.abc import Iterable
from typing import Any

from kvfw.core.compose.budget import Amount
from kvfw.core.compress.compressor import Compressor
from kvfw.errors import PromptError
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


def check_named_probes(bound: Iterable[Compressor], tokenizer: object) -> None:
    """Raises OptionError if a composition's probe is a text file that does not exist."""
    from kvfw.model.session.probing import check_probes

    for one in bound:
        check_probes(one.needs, tokenizer, None)
