"""Attention Matching by highest attention (Zweiger et al. 2026, arXiv 2602.16284)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class AttentionMatching(Method):
    """Tokens of most attention from a probe, then biases and values refitted by least squares.

    The scorer ``probed(reduce=rms)`` and the refiner ``refit``; ``attention_matching@global`` ranks all heads
    together.

    Paper: Zweiger, Fu, Guo, Kim 2026, Attention Matching, arXiv 2602.16284: the variant that chooses keys by highest
    attention.

    Deviations: those of ``refit``. The paper searches each head's budget beforehand; here heads are equal. Its
    queries come from several kinds of probes; here from a repetition of the prompt.
    """

    ridge: float = Field(0.01, ge=0, description="pull towards the biases and values there were")

    recipe: ClassVar[str] = "probed(reduce=rms)|refit(ridge=$ridge)"
