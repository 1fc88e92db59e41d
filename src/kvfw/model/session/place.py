"""Place: where new tokens stand, and which of them are padding."""

from typing import Any

import torch
from torch import Tensor

from kvfw.errors import UnsupportedError
from kvfw.model.cache.layer import CompressedLayer


def place(layer: CompressedLayer, count: int, position_ids: Any, padding: Tensor | None) -> None:
    """Gives the last ``count`` tokens of a layer their positions.

    Args:
        layer: the layer.
        count: new tokens.
        position_ids: as the model's attention was given them; None: consecutive ones.
        padding: ``[B, seen + n]``, False for padding; None if all are real.

    Raises:
        UnsupportedError: padding on the right.
    """
    layer.place(_positions(layer, count, position_ids), _real(count, padding))


def text_positions(position_ids: Tensor, count: int) -> Tensor:
    """Positions ``[B or 1, count]`` float32 of the last tokens; ids of several axes agree on all of them for text."""
    ids = position_ids[0] if position_ids.ndim == 3 else position_ids
    return ids[:, -count:].to(torch.float32)


def _positions(layer: CompressedLayer, count: int, position_ids: Any) -> Tensor:
    """Positions ``[B, n]`` the model gave the new tokens; consecutive ones where it does not pass them on."""
    if position_ids is None:
        return layer.next_positions(count)
    return text_positions(position_ids, count).expand(len(layer.captured.tokens), count)


def _real(count: int, padding: Tensor | None) -> Tensor | None:
    """Which of the new tokens are not padding, ``[B, n]``; None if all are real."""
    if padding is None or bool(padding[:, -count:].all()):
        return None
    real = padding[:, -count:].to(torch.bool)
    if count > 1 and not bool(real[:, -1].all()):
        raise UnsupportedError(
            "a prompt of this batch ends in padding; kvfw needs it on the left: set tokenizer.padding_side='left'"
        )
    return real
