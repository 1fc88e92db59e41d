"""What each family's rotation must be found to be, and its keys as they were before it."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from helpers.tiny_models import bound, prompt, snapshot
from kvfw.core.state.observation import Observation

LENGTH = 150  # beyond the 64 positions of the dynamic and the scaled models

#: What each family must be found to do: rotary width, layout, and the modules whose output the rotation takes.
ROTATIONS = {
    "llama": (16, "half", "k_proj"),
    "qwen2": (16, "half", "k_proj"),
    "qwen3": (16, "half", "k_norm"),
    "gemma3": (16, "half", "k_norm"),
    "llama3": (16, "half", "k_proj"),
    "yarn": (16, "half", "k_proj"),
    "dynamic": (16, "half", "k_proj"),
    "phi": (8, "half", "k_proj"),
    "glm": (8, "interleaved", "k_proj"),
    "glm4": (8, "interleaved", "k_proj"),
    "cohere": (16, "interleaved", "k_proj"),
    "linear": (16, "half", "k_proj"),
    "mistral": (16, "half", "k_proj"),
    "mixtral": (16, "half", "k_proj"),
    "olmo2": (16, "half", "k_norm"),
    "gemma2": (16, "half", "k_proj"),
    "gpt_oss": (16, "half", "k_proj"),
    "qwen3_vl": (16, "half", "k_norm"),
    "phi3": (16, "half", "qkv_proj"),
    "longrope": (16, "half", "qkv_proj"),
    "smollm3": (16, "half", "k_proj"),
    "cohere2": (16, "interleaved", "k_proj"),
    "exaone4": (16, "half", "k_norm"),
    "gpt_neox": (4, "half", "query_key_value"),
}


def observed(model: PreTrainedModel, source: str) -> tuple[dict[int, Observation], dict[int, Tensor]]:
    """Observations of a prompt, and each layer's keys as they were before the model rotated them."""
    before: dict[int, Tensor] = {}
    handles = []
    by = bound("streaming")
    for name, module in model.named_modules():
        parts = name.split(".")
        if parts[-1] == source:
            layer = int(parts[parts.index("layers") + 1])

            def keep(module: nn.Module, inputs: object, output: Tensor, layer: int = layer) -> None:
                if output.shape[-2] == LENGTH or output.shape[1] == LENGTH:
                    before[layer] = output.clone()

            handles.append(module.register_forward_hook(keep))
    try:
        observations = snapshot(model, prompt(LENGTH), by).observations
    finally:
        for handle in handles:
            handle.remove()
    heads = {i: obs.state.keys for i, obs in observations.items()}
    return observations, {i: in_heads(before[i], like) for i, like in heads.items()}


def in_heads(x: Tensor, like: Tensor) -> Tensor:
    """``[1, N, Hkv * D]``, ``[1, N, Hkv, D]`` or ``[1, Hkv, N, D]`` as ``[1, Hkv, N, D]``.

    Also out of fused projections: Phi-3 puts all queries, all keys and all values side by side, GPT-NeoX those of
    every head.
    """
    if x.shape == like.shape:
        return x
    heads, size = like.shape[1], like.shape[-1]
    if x.shape[-1] == 3 * heads * size:
        return x.reshape(1, LENGTH, heads, 3 * size)[..., size : 2 * size].transpose(1, 2)
    if x.shape[-1] > heads * size and x.ndim == 3:
        x = x[..., -2 * heads * size : -heads * size]
    return x.reshape(1, LENGTH, like.shape[1], -1).transpose(1, 2)
