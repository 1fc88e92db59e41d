"""SnapKV with the constants of its LongBench runs."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class SnapKVLongBench(Method):
    """SnapKV with the constants of its authors' LongBench configurations.

    The last 32 queries, max pooling over 7 tokens; see the scorer ``snapkv``.

    Paper: Li et al. 2024, SnapKV: LLM Knows What You are Looking for Before Generation, arXiv 2404.14469.

    Deviations: those of ``snapkv``.
    """

    window: int = Field(32, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(7, ge=1, description="pooling width in tokens, odd")

    recipe: ClassVar[str] = "snapkv(window=$window,kernel=$kernel,pool=max)"
