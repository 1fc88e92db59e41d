"""SnapKV with the constants its authors' code falls back to."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class SnapKVOriginal(Method):
    """SnapKV with the constants of its authors' code for a model whose configuration names none.

    The last 32 queries, average pooling over 5 tokens; see the scorer ``snapkv``.

    Paper: Li et al. 2024, SnapKV: LLM Knows What You are Looking for Before Generation, arXiv 2404.14469.

    Deviations: those of ``snapkv``. The window of 32 is protected in the original; here protection is the
    compressor's: its default of 84 recent tokens contains the window.
    """

    window: int = Field(32, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(5, ge=1, description="pooling width in tokens, odd")

    recipe: ClassVar[str] = "snapkv(window=$window,kernel=$kernel,pool=avg)"
