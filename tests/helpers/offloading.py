"""A model whose weights lie elsewhere between forwards, done as accelerate does it."""

import functools
from typing import Any

import torch
from torch import nn


class BringHook:
    """What accelerate calls AlignDevicesHook: brings a module's own weights for its forward, and takes them away."""

    def __init__(self, module: Any) -> None:
        self.execution_device = torch.device("cpu")
        self.elsewhere = {name: weight.data for name, weight in module.named_parameters(recurse=False)}

    def bring(self, module: Any) -> None:
        """Puts the weights in their place."""
        for name, weight in self.elsewhere.items():
            module._parameters[name] = nn.Parameter(weight, requires_grad=False)

    def take_away(self, module: Any) -> None:
        """Leaves their shapes behind."""
        for name, weight in self.elsewhere.items():
            module._parameters[name] = nn.Parameter(weight.to("meta"), requires_grad=False)


def offload(model: Any) -> None:
    """Offloads every module with weights below ``model``, itself included."""
    for module in model.modules():
        hook = BringHook(module)
        forward = module.forward

        def hooked(*args: Any, module: Any = module, hook: Any = hook, forward: Any = forward, **kwargs: Any) -> Any:
            hook.bring(module)
            try:
                return forward(*args, **kwargs)
            finally:
                hook.take_away(module)

        module._hf_hook = hook
        module.forward = functools.update_wrapper(hooked, forward)
        hook.take_away(module)
