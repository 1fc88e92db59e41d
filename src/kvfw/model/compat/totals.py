"""Attention that also says each query's total, by torch's own kernel for a CPU."""

import torch
from torch import Tensor


def has_totals(device: torch.device) -> bool:
    """Whether :func:`attention_and_totals` works on this device: torch has no public function for it."""
    return device.type == "cpu" and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")


def attention_and_totals(
    query: Tensor, key: Tensor, value: Tensor, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, H, n, D]``, and the logarithm of every query's sum of ``exp(logit)``, ``[B, H, n]`` in float32.

    Keys and values have one head per query head, and as many channels.
    """
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, totals = attend(query, key, value, is_causal=causal, scale=scale)
    return out, totals
