"""What SnapKV keeps, read off a model's own eager attention: a slow reference."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

SINKS, RECENT = 4, 8


def eager_attention(model: PreTrainedModel, ids: Tensor) -> list[NDArray[np.float32]]:
    """Every layer's whole attention matrix ``[H, L, L]``, from the model's own eager attention."""
    with torch.inference_mode():
        out = model(input_ids=ids, output_attentions=True, use_cache=False)
    return [layer[0].numpy() for layer in out.attentions]


def reference_scores(
    attention: NDArray[np.float32], kv_heads: int, window: int, kernel: int, pool: str
) -> NDArray[np.float64]:
    """SnapKV's scores of the middle ``[Hkv, M]``, from the formula and the whole matrix."""
    heads, length, _ = attention.shape
    mean = attention[:, length - window :].astype(np.float64).mean(axis=1)
    grouped = mean.reshape(kv_heads, heads // kv_heads, length).mean(axis=1)[:, SINKS : length - RECENT]
    half = kernel // 2
    padded = np.pad(grouped, ((0, 0), (half, half)))
    views = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=1)
    pooled: NDArray[np.float64] = views.mean(axis=-1) if pool == "avg" else views.max(axis=-1)
    return pooled


def reference_kept(scores: NDArray[np.float64], budget: int, length: int) -> list[list[int]]:
    """Kept positions of every head: sinks, the highest scores (ties to the lowest position), recent tokens."""
    chosen = []
    for row in scores:
        order = sorted(range(len(row)), key=lambda j: (-row[j], j))[:budget]
        middle = sorted(SINKS + j for j in order)
        chosen.append([*range(SINKS), *middle, *range(length - RECENT, length)])
    return chosen
