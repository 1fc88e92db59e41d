"""CriticalKV with Ada-KV's budgets (Feng et al. 2025, arXiv 2502.03805)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class CriticalAdaKV(Method):
    """SnapKV corrected by the values' effect on the output, with budgets by one ranking per layer.

    ``criticalkv(scorer=snapkv(...))@adakv``.

    Paper: Feng et al. 2025, Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective,
    arXiv 2502.03805.

    Deviations: those of ``criticalkv`` and ``adakv``.
    """

    window: int = Field(32, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(7, ge=1, description="pooling width in tokens, odd")
    floor: float = Field(0.2, ge=0, le=1, description="part of an equal share that every head gets")

    recipe: ClassVar[str] = "criticalkv(scorer=snapkv(window=$window,kernel=$kernel,pool=max))@adakv(floor=$floor)"
