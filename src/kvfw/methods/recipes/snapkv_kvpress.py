"""SnapKV with the constants of NVIDIA's kvpress."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class SnapKVKvpress(Method):
    """SnapKV with the constants of NVIDIA's kvpress.

    The last 64 queries, average pooling over 5 tokens, mean over the group; see the scorer ``snapkv``.

    Paper: Li et al. 2024, SnapKV: LLM Knows What You are Looking for Before Generation, arXiv 2404.14469; the
    constants are those of SnapKVPress in kvpress 0.5.

    Deviations: those of ``snapkv``. kvpress counts the window in its ratio; here recent tokens come on top.
    """

    window: int = Field(64, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(5, ge=1, description="pooling width in tokens, odd")

    recipe: ClassVar[str] = "snapkv(window=$window,kernel=$kernel,pool=avg)"
