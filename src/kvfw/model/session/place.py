"""Positions of new tokens, and which of them are padding."""

from typing import Any

import torch
from torch import Tensor

from kvfw.errors import UnsupportedError
from kvfw.model.cache.captured import NewTokens
from kvfw.model.cache.layer import CompressedLayer


def new_tokens(
    layer: CompressedLayer, count: int, position_ids: Any, padding: Tensor | None, end: int | None
) -> NewTokens:
    """The last ``count`` tokens, at the positions passed to attention or at consecutive ones.

    ``end``: tokens seen at the end of an announced prompt or turn.

    Raises:
        UnsupportedError: a prompt or turn ends in padding (False in ``padding``, ``[B, seen + n]``).
    """
    if position_ids is None:
        positions = layer.next_positions(count)
    else:
        positions = text_positions(position_ids, count).expand(len(layer.captured.tokens), count)
    goes_on = end is not None and layer.seen < end
    may_end_in_padding = goes_on or (count == 1 and layer.seen != end)
    return NewTokens.after(layer.captured, positions, _real(count, padding, may_end_in_padding=may_end_in_padding))


def text_positions(position_ids: Tensor, count: int) -> Tensor:
    """Positions ``[B or 1, count]`` float32 of the last tokens; with several axes the first, as all agree for text."""
    ids = position_ids[0] if position_ids.ndim == 3 else position_ids
    return ids[:, -count:].to(torch.float32)


def _real(count: int, padding: Tensor | None, *, may_end_in_padding: bool) -> Tensor | None:
    """Which of the new tokens are not padding, ``[B, n]``; None if all are real."""
    if padding is None or bool(padding[:, -count:].all()):
        return None
    real = padding[:, -count:].to(torch.bool)
    if not may_end_in_padding and not bool(real[:, -1].all()):
        raise UnsupportedError(
            "a prompt of this batch ends in padding; kvfw needs it on the left: set tokenizer.padding_side='left'"
        )
    return real
