"""ZigZagKV (Zhong et al. 2024, arXiv 2412.09036)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class ZigZagKV(Method):
    """SnapKV with more slots in layers whose attention needs more tokens.

    See the scorer ``snapkv`` and the allocator ``zigzag``.

    Paper: Zhong et al. 2024, ZigZagKV: Dynamic KV Cache Compression for Long-context Modeling based on Layer
    Uncertainty, arXiv 2412.09036.

    Deviations: those of ``snapkv`` and ``zigzag``. The paper names no window or pooling; these are those of SnapKV's
    LongBench runs.
    """

    window: int = Field(32, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(7, ge=1, description="pooling width in tokens, odd")

    recipe: ClassVar[str] = "snapkv(window=$window,kernel=$kernel,pool=max)@zigzag"
