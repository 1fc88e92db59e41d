"""A LoRA layer as PEFT puts it into a model: the layer it adapts inside, and a switch."""

from typing import Any

import torch
from torch import Tensor, nn


class LoraLinear(nn.Module):
    """Adds ``B A x``, times a scale, to what a linear layer gives, while the adapter is active."""

    def __init__(self, base_layer: nn.Linear, name: str, rank: int = 2) -> None:
        super().__init__()
        self.base_layer = base_layer
        generator = torch.Generator().manual_seed(0)
        self.lora_A = nn.ParameterDict({name: torch.randn(rank, base_layer.in_features, generator=generator)})
        self.lora_B = nn.ParameterDict({name: torch.randn(base_layer.out_features, rank, generator=generator)})
        self.scaling = {name: 0.1}
        self.active_adapters = [name]
        self.disable_adapters = False

    @property
    def weight(self) -> Tensor:
        """Of the layer inside, as PEFT's layers give it."""
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        """The adapted layer."""
        out: Tensor = self.base_layer(x)
        for name in () if self.disable_adapters else self.active_adapters:
            out = out + self.scaling[name] * (x @ self.lora_A[name].T @ self.lora_B[name].T)
        return out


def add_lora(model: Any, name: str) -> list[LoraLinear]:
    """Adapts the query projection of every layer."""
    found = []
    for layer in model.model.layers:
        layer.self_attn.q_proj = LoraLinear(layer.self_attn.q_proj, name)
        found.append(layer.self_attn.q_proj)
    return found
