"""VATP (Guo et al. 2024, arXiv 2406.12335)."""

from typing import Annotated, ClassVar

from jaxtyping import Float
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import Part, PartOption
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs, Observation
from kvfw.errors import RunError


class VATP(Part):
    """Attention is not all: ``s_j = a_j ||v_j||_1``, ``a`` the scores of ``scorer``.

    By default ``a`` is the attention accumulated over the whole prompt, as in H2O. Sinks, whose values are tiny, are
    kept by the compressor, not by this score.

    Paper: Guo et al. 2024, Attention Score is not All You Need for Token Importance Indicator in KV Cache Reduction:
    Value Also Matters, arXiv 2406.12335.

    Deviations: the paper weighs H2O and Scissorhands; here any scorer whose scores are not negative can be weighed.
    Attention is the mean over a KV head's query heads.
    """

    comparable: ClassVar[bool] = True

    scorer: Annotated[
        Scorer, SkipValidation, PartOption(Kind.SCORER, "h2o(norm=none)"), Field(description="its scores are weighed")
    ]

    @property
    def needs(self) -> Needs:
        """What the weighed scorer needs."""
        return self.scorer.needs

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Scores times the values' L1 norms.

        Raises:
            RunError: a score is negative, so that a larger norm would rank it lower.
        """
        scores = obs.score(self.scorer)
        if bool((scores < 0).logical_and(obs.state.valid).any()):
            raise RunError(
                "vatp multiplies scores, and its scorer gives negative ones; use a scorer whose scores are 0 or more, "
                "such as attention"
            )
        return scores * obs.state.values.float().abs().sum(-1)
