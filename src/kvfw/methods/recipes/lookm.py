"""LOOK-M (Wan et al. 2024, arXiv 2406.18139)."""

from typing import ClassVar, Literal

from pydantic import Field

from kvfw.core.parts.part import Method


class LookMMethod(Method):
    """Heavy hitters, with dropped tokens averaged into the kept ones of most similar key.

    The merger ``lookm`` over plain sums of attention.

    Paper: Wan et al. 2024, LOOK-M: Look-Once Optimization in KV Cache for Efficient Multimodal Long-Context Inference,
    arXiv 2406.18139.

    Deviations: those of the merger.
    """

    how: Literal["average", "pivot", "weighted"] = Field("pivot", description="the mean that is taken")

    recipe: ClassVar[str] = "merge(merger=lookm(how=$how),weight=h2o(norm=none))"
