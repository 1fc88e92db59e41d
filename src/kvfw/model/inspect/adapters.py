"""The adapters (LoRA and others of PEFT) that are active in a model's forward."""

from collections import Counter
from typing import Any

from torch import nn

NO_ADAPTERS = "none"


def tuned_modules(model: nn.Module) -> list[tuple[str, Any]]:
    """Modules that PEFT wraps, by name; a bool there, ``disable_adapters`` is a method of a whole model."""
    return [(name, m) for name, m in model.named_modules() if isinstance(getattr(m, "disable_adapters", None), bool)]


def active_adapters(model: nn.Module) -> str:
    """Names of the active adapters, each with the number of modules it is active in; ``none`` without any."""
    found = Counter[str]()
    for _, module in tuned_modules(model):
        active = module.active_adapters
        found.update(() if module.disable_adapters else [active] if isinstance(active, str) else active)
    return ", ".join(f"{name} in {count} modules" for name, count in sorted(found.items())) or NO_ADAPTERS
