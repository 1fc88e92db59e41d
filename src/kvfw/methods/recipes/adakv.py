"""Ada-KV on SnapKV (Feng et al. 2024, arXiv 2407.11550)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class AdaSnapKV(Method):
    """SnapKV whose heads share a layer's budget by one ranking, on top of a floor: Ada-SnapKV.

    See the scorer ``snapkv`` and the allocator ``adakv``.

    Paper: Feng et al. 2024, Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM
    Inference, arXiv 2407.11550.

    Deviations: those of ``snapkv`` and ``adakv``; for other scorers write ``SCORER@adakv``.
    """

    window: int = Field(32, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(7, ge=1, description="pooling width in tokens, odd")
    floor: float = Field(0.2, ge=0, le=1, description="part of an equal share that every head gets")

    recipe: ClassVar[str] = "snapkv(window=$window,kernel=$kernel,pool=max)@adakv(floor=$floor)"
