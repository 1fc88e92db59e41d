"""Which adapters (LoRA and others of PEFT) take part in a model's forward."""

from collections import Counter
from typing import Any

from torch import nn

NO_ADAPTERS = "none"


def tuned_modules(model: nn.Module) -> list[tuple[str, Any]]:
    """Modules that adapters stand in, by name.

    PEFT's have ``disable_adapters`` and ``active_adapters`` as values; a whole model has methods of these names.
    """
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(getattr(module, "disable_adapters", None), bool)
    ]


def active_adapters(model: nn.Module) -> str:
    """Names of the active adapters, each with the number of modules it is active in; ``none`` without any."""
    found = Counter[str]()
    for _, module in tuned_modules(model):
        active = module.active_adapters
        found.update(() if module.disable_adapters else [active] if isinstance(active, str) else active)
    return ", ".join(f"{name} in {count} modules" for name, count in sorted(found.items())) or NO_ADAPTERS
