"""RazorAttention (Tang et al. 2024, arXiv 2407.15891)."""

from typing import ClassVar

from kvfw.core.parts.part import Method


class RazorAttention(Method):
    """Everything in heads that look far; in the others the last tokens, and one slot for all the rest.

    The merger ``compensation`` with log mass, under the allocator ``duo``.

    Paper: Tang et al. 2024, RazorAttention: Efficient KV Cache Compression Through Retrieval Heads, arXiv 2407.15891.

    Deviations: those of the merger and of ``duo``: the paper finds its heads by attention to repetitions in random
    tokens.
    """

    recipe: ClassVar[str] = "merge(merger=compensation,weight=position,bias=log)@duo"
