"""Is a prompt long enough to compress, and short enough for the model?"""

from typing import Any

from kvfw.core.compose.budget import Amount
from kvfw.errors import PromptError
from kvfw.runner.plan.config import CompressionConfig


def check_length(what: str, tokens: int, config: CompressionConfig, amounts: tuple[Amount, ...]) -> None:
    """What is compressed must have a middle, and every amount a slot for it.

    Args:
        what: names the prompt in the error, such as ``"sample 80-50-0 has 80 tokens, which"``.
        tokens: how many tokens are compressed.

    Raises:
        PromptError, BudgetError: with the tokens or slots that are needed.
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
    """Prompt and response must fit into the model's positions, if limited, and on one side of a LongRoPE switch.

    Raises:
        PromptError: with the largest prompt that fits.
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
