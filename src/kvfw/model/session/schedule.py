"""Decides when a prompt, a turn or a stretch of decoding ends."""

from enum import Enum

from kvfw.errors import UnsupportedError
from kvfw.model.cache.captured import Captured
from kvfw.model.session.plan import SessionPlan


class Due(Enum):
    """What ended with a forward and so triggers a compression."""

    TURN = "a prompt or a turn"
    STRETCH = "a stretch of decoding"


def due(plan: SessionPlan, layer: Captured, count: int, end: int | None) -> Due | None:
    """What ended with a layer's last ``count`` tokens, if the plan then compresses; ``end`` is an announced end.

    Raises:
        UnsupportedError: a forward went beyond the announced end.
    """
    over = _turn_is_over(layer, count, end)
    if over and (plan.recompress or not layer.compressed):
        return Due.TURN
    every = plan.compress_every
    if not layer.compressed or over is None or every is None or layer.seen - layer.compressed_at < every:
        return None  # also inside an announced turn: the result would depend on its chunks
    return Due.STRETCH


def _turn_is_over(layer: Captured, count: int, end: int | None) -> bool | None:
    """Whether a prompt or turn ended; None inside an announced one."""
    if end is None or layer.seen - count >= end:
        return not layer.compressed or count > 1
    if layer.seen > end:
        raise UnsupportedError(
            f"the prompt was said to end after {end} tokens, but a forward reached {layer.seen}; feed the first "
            f"{end} tokens in forwards of their own"
        )
    return True if layer.seen == end else None
