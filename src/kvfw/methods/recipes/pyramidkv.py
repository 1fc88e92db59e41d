"""PyramidKV (Cai et al. 2024, arXiv 2406.02069)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class PyramidKV(Method):
    """SnapKV with more slots in low layers and fewer in high ones.

    See the scorer ``snapkv`` and the allocator ``pyramid``. The window is that of the paper's runs, 8 queries.

    Paper: Cai et al. 2024, PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling, arXiv
    2406.02069.

    Deviations: those of ``snapkv`` and ``pyramid``.
    """

    window: int = Field(8, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(7, ge=1, description="pooling width in tokens, odd")
    beta: float = Field(20, ge=1, description="mean slots over the highest layer's")

    recipe: ClassVar[str] = "snapkv(window=$window,kernel=$kernel,pool=max)@pyramid(beta=$beta)"
