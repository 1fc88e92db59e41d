"""Attention from a few given queries to the slots of a state; no other rows are computed."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from kvfw.core.ops.columns import attention_columns, column_sums
from kvfw.core.state.observation import Columns, Observation


def window_attention(obs: Observation) -> Float32[Tensor, "B Hkv N"]:
    """Mean attention from the observed last queries to every slot, averaged over each KV head's query heads.

    ``softmax(cap(scale * Q[-w:] K^T) + bias)`` over all slots a query may see (slot position <= query position), in
    float32, with the model's own cap and sinks (see :func:`column_sums`); mean over the ``w`` real queries, then over
    the ``g`` query heads of a KV head. Empty slots get 0. Raises a RunError if the last queries were not declared.
    """
    queries, positions = obs.window()
    real = (positions >= 0).sum(dim=1)[:, None, None]
    sums = column_sums(queries, positions, obs.state, obs.scale, (0,), softcap=obs.softcap, sink_logits=obs.sink_logits)
    return sums[0] / real


def window_peaks(obs: Observation) -> Float32[Tensor, "B Hkv N"]:
    """Largest attention that any observed last query, of any query head of the KV head, gives to every slot.

    The attention of :func:`window_attention`, with maxima over the queries and the group in place of means.
    """
    queries, positions = obs.window()
    largest = Columns(over="max", heads="each")
    found = attention_columns(
        queries, positions, obs.state, obs.scale, (largest,), softcap=obs.softcap, sink_logits=obs.sink_logits
    )[largest]
    return found.view(found.shape[0], obs.state.keys.shape[1], -1, found.shape[-1]).amax(2)


def odd_kernel(kernel: int) -> int:
    """Validates the pooling width of an option; a ValueError if it is even."""
    if kernel % 2 == 0:
        raise ValueError(f"the pooling kernel must be odd; use {kernel - 1} or {kernel + 1}")
    return kernel


def pool_middle(scores: Float[Tensor, "B Hkv N"], obs: Observation, kernel: int, pool: str) -> Float[Tensor, "B Hkv N"]:
    """1-D pooling over the middle only, stride 1, padding ``kernel // 2``; average pooling counts the zero padding.

    Protected slots count as padding (pooling over them would leak the sinks' huge attention into their neighbours)
    and get 0.

    Args:
        scores: not negative, so that 0 is neutral for max pooling too.
        obs: tells which slots are the middle.
        kernel: width in tokens, odd; 1 leaves the middle's scores unchanged.
        pool: ``"avg"`` or ``"max"``.

    Raises:
        ValueError: the kernel is even or below 1, or the kind of pooling is unknown.
    """
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel={kernel}: must be odd and at least 1")
    if pool not in ("avg", "max"):
        raise ValueError(f"pool={pool!r}: must be 'avg' or 'max'")
    inside = scores.masked_fill(~obs.middle, 0.0)
    if kernel > 1:
        operation = torch.nn.functional.avg_pool1d if pool == "avg" else torch.nn.functional.max_pool1d
        inside = operation(inside, kernel_size=kernel, stride=1, padding=kernel // 2)
    return inside.masked_fill(~obs.middle, 0.0)
