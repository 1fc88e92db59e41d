"""Measures how accurately RoPE can be undone on the keys of a run."""

from typing import Any

import torch

from kvfw.core.state.rope import rotate, unrotate
from kvfw.model.run.prefill import Prefill


@torch.inference_mode()
def rope_inversion(filled: Prefill) -> dict[str, Any]:
    """Round-trip error of un-rotating and re-rotating a prompt's own keys, per layer, in float32.

    ``relative_error`` is ``max |R(p) R(-p) k - k| / max |k|`` over all heads and tokens: about 1e-7 for keys stored in
    float32. For half-precision keys the rounding at storage is larger than this error.
    """
    layers: list[dict[str, int | float | str | None]] = []
    for index, obs in filled.observations.items():
        if obs.rope is None:
            layers.append({"layer": index, "relative_error": None, "reason": "the layer rotates nothing"})
            continue
        keys = obs.state.keys.float()
        back = rotate(unrotate(keys, obs.state.positions, obs.rope), obs.state.positions, obs.rope)
        error = float((back - keys).abs().max() / keys.abs().max())
        layers.append({"layer": index, "relative_error": error})
    return {
        "tokens": filled.tokens,
        "dtype": str(next(iter(filled.observations.values())).state.keys.dtype),
        "layers": layers,
    }
