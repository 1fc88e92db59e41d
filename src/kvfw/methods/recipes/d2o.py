"""D2O (Wan et al. 2024, arXiv 2406.13035)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class D2OMethod(Method):
    """Heavy hitters, with dropped tokens folded into similar kept ones.

    The merger ``d2o`` over plain sums of attention.

    Paper: Wan et al. 2024, D2O: Dynamic Discriminative Operations for Efficient Long-Context Inference of Large
    Language Models, arXiv 2406.13035.

    Deviations: those of the merger. The paper gives layers different budgets; write ``d2o@cake`` or another allocator.
    """

    threshold: float = Field(1, ge=0, description="least similarity, relative to the mean of the dropped tokens")

    recipe: ClassVar[str] = "merge(merger=d2o(threshold=$threshold),weight=h2o(norm=none))"
