"""KeepKV (Tian et al. 2025, arXiv 2504.09936)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class KeepKVMethod(Method):
    """Tokens of most attention now, with similar ones folded in so that its output stays.

    The merger ``keepkv`` over unpooled attention from the last queries.

    Paper: Tian et al. 2025, KeepKV: Achieving Periodic Lossless KV Cache Compression for Efficient LLM Inference,
    arXiv 2504.09936.

    Deviations: those of the merger. The paper estimates attention by a moving average over steps; here it is the mean
    over ``window`` queries.
    """

    window: int = Field(32, ge=1, description="number of last queries; clipped to the prompt's length")
    threshold: float = Field(0.8, ge=-1, le=1, description="least cosine of keys that merge")

    recipe: ClassVar[str] = "merge(merger=keepkv(threshold=$threshold),weight=snapkv(window=$window,kernel=1))"
