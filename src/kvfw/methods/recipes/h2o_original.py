"""H2O as published (Zhang et al. 2023, arXiv 2306.14048)."""

from typing import ClassVar

from kvfw.core.parts.part import Method


class H2OOriginal(Method):
    """Heavy hitters by plain sums of attention, and as many of the last tokens.

    ``h2o(norm=none)`` with half of the slots, ``streaming`` with the other half.

    Paper: Zhang et al. 2023, H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models,
    arXiv 2306.14048.

    Deviations: the paper evicts a token at every step; here the prompt is compressed at once and, with
    ``compress_every``, again later. Recent tokens that the compressor protects come on top of its half.
    """

    recipe: ClassVar[str] = "h2o(norm=none):0.5+streaming:0.5"
