"""Plans compression while decoding, and refuses compositions that cannot be used for it."""

from typing import TYPE_CHECKING

from kvfw.core.compress.compressor import Compressor
from kvfw.core.state.lexical import Vocabulary
from kvfw.errors import UnsupportedError
from kvfw.runner.plan.config import CompressionConfig

if TYPE_CHECKING:  # it imports transformers, which a wrong request does not have to wait for
    from kvfw.model.session.plan import SessionPlan


def decoding_plan(one: Compressor, config: CompressionConfig, tokenizer: Vocabulary) -> "SessionPlan | None":
    """The plan for compressing while answering, None if only the prompt is compressed.

    Raises:
        BudgetError, UnsupportedError: the composition or amount cannot be used while answering.
    """
    if config.compress_every is None:
        return None
    from kvfw.model.session.plan import SessionPlan

    try:
        return SessionPlan(
            needs=one.needs,
            sinks=config.sinks,
            recent=config.recent,
            compressor=one,
            compress_every=config.compress_every,
            vocabulary=tokenizer,
        )
    except UnsupportedError as error:
        raise UnsupportedError(f"{one.composition}: {error}") from None
