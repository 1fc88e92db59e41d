"""A model without weights, made from its configuration alone, whose attention can be probed."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from kvfw.errors import UnsupportedError
from kvfw.model.compat.config_errors import made_by_transformers
from kvfw.model.inspect.layers import attention_modules


class _Zeros(nn.Module):
    """A linear layer of zeros that takes no memory."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-1], self.out_features)


def skeleton(config: PreTrainedConfig, name: str, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model of a whole configuration in its real shape: rotation is real, projections are zero, the rest is meta.

    It can be inspected (:func:`kvfw.model.inspect.layers.anatomy`), not run. ``name`` is its name in errors.

    Raises:
        UnsupportedError: transformers cannot build the model, or not its rotary module alone.
    """
    maker: Any = AutoModelForCausalLM
    with made_by_transformers(name), torch.device("meta"):
        model: PreTrainedModel = maker.from_config(config, trust_remote_code=trust_remote_code)
    for path, module in list(model.named_modules()):
        if path.split(".")[-1].startswith("rotary_emb") and hasattr(module, "config"):
            model.set_submodule(path, _remade(module))
    for attention in attention_modules(model):
        _materialise(attention)
    model.eval()
    return model


def _remade(rotary: Any) -> nn.Module:
    """The same rotary module with real frequencies."""
    try:
        remade: nn.Module = type(rotary)(rotary.config)
    except Exception as error:
        raise UnsupportedError(
            f"{type(rotary).__name__} cannot be made of the configuration alone ({type(error).__name__}: {error}); "
            "load the model to see what it does"
        ) from error
    return remade


def _materialise(attention: nn.Module) -> None:
    for name, module in list(attention.named_modules()):
        if isinstance(module, nn.Linear):
            attention.set_submodule(name, _Zeros(module))
    for module in attention.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.ones_like(weight, device="cpu"), requires_grad=False))
