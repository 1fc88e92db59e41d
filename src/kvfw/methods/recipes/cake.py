"""CAKE (Qin et al. 2025, arXiv 2503.12491)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class CakeKV(Method):
    """Tokens whose attention is high or changes, with budgets by each layer's entropy and variance.

    The scorer ``shifting`` under the allocator ``cake``, over the same window.

    Paper: Qin et al. 2025, CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences, arXiv 2503.12491.

    Deviations: those of ``shifting`` and ``cake``.
    """

    window: int = Field(32, ge=2, description="number of last queries; clipped to the prompt's length")
    gamma: float = Field(200, ge=0, description="weight of the variance in the scores")
    tau1: float = Field(1, gt=0, description="the higher, the less a layer's entropy counts")
    tau2: float = Field(1, gt=0, description="the higher, the less a layer's variance counts")

    recipe: ClassVar[str] = "shifting(window=$window,gamma=$gamma)@cake(window=$window,tau1=$tau1,tau2=$tau2)"
