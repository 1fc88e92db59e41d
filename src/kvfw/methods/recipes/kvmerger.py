"""KVMerger (Wang et al. 2024, arXiv 2407.08454)."""

from typing import ClassVar

from kvfw.core.parts.part import Method


class KVMergerMethod(Method):
    """Runs of neighbours with similar keys merged around their most attended token.

    The merger ``kvmerger`` over plain sums of attention.

    Paper: Wang, Jin, Yu, Zhang 2024, Model Tells You Where to Merge: Adaptive KV Cache Merging for LLMs on Long-Context
    Tasks, arXiv 2407.08454.

    Deviations: those of the merger.
    """

    recipe: ClassVar[str] = "merge(merger=kvmerger,weight=h2o(norm=none))"
