"""WeightedKV (Yuan et al. 2025, arXiv 2503.01330)."""

from typing import ClassVar

from kvfw.core.parts.part import Method


class WeightedKVMethod(Method):
    """Tokens of most average attention, with dropped values folded into the next of them.

    The merger ``weightedkv`` over attention per exposure.

    Paper: Yuan et al. 2025, WeightedKV: Attention Scores Weighted Key-Value Cache Merging for Large Language Models,
    arXiv 2503.01330.

    Deviations: those of the merger.
    """

    recipe: ClassVar[str] = "merge(merger=weightedkv,weight=h2o)"
