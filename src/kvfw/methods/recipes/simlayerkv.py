"""SimLayerKV (Zhang et al. 2024, arXiv 2410.13846)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class SimLayerKV(Method):
    """Sinks and recent tokens alone in lazy layers, whatever fits in the others.

    The allocator ``simlayer`` over ``streaming``.

    Paper: Zhang et al. 2024, SimLayerKV: A Simple Framework for Layer-Level KV Cache Reduction, arXiv 2410.13846.

    Deviations: those of ``simlayer``. The other layers are whole in the paper; here they keep their last tokens
    where the budget does not hold all.
    """

    threshold: float = Field(0.9, ge=0, le=1, description="attention to first and last tokens that makes a layer lazy")
    recent: int = Field(1024, ge=0, description="number of last tokens")

    recipe: ClassVar[str] = "streaming@simlayer(threshold=$threshold,recent=$recent)"
