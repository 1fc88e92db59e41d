"""Compactor (Chari and Van Durme 2025, arXiv 2507.08143)."""

from typing import Annotated

from jaxtyping import Float
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.contracts.parts import Scorer
from kvfw.core.ops.zscores import zscores
from kvfw.core.parts.part import Part, PartOption
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs, Observation


class Compactor(Part):
    """Keys that stand out, and tokens that their surroundings attend to: ``s_j = blending z(l_j) + z(a_j)``.

    ``l`` are the scores of ``outliers``, ``a`` those of ``attention``, and z takes both to standard deviations from
    the mean over the middle of all heads of the layer.

    Paper: Chari and Van Durme 2025, Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate Leverage
    Scores, arXiv 2507.08143. The blending is that of the authors' engine; their implementation in kvpress takes the
    fraction that is removed. Both protect the first 8 or 16 and the last 4 or 64 tokens: set ``sinks`` and ``recent``.

    Deviations: z-scores are taken row by row (kvpress: over a batch). The paper's search for the ratio that a text
    bears is left out. The authors rank the heads of a layer together; z-scores of different layers have no common
    unit, so the scores are not comparable here.
    """

    blending: float = Field(0.5, ge=0, description="weight of the outlier score")
    outliers: Annotated[
        Scorer, SkipValidation, PartOption(Kind.SCORER, "leverage"), Field(description="how far a key stands out")
    ]
    attention: Annotated[
        Scorer, SkipValidation, PartOption(Kind.SCORER, "noncausal"), Field(description="how much a token is looked at")
    ]

    @property
    def needs(self) -> Needs:
        """What both scorers need."""
        return self.outliers.needs | self.attention.needs

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Blended z-scores of the middle, 0 elsewhere."""
        outliers, attention = (zscores(obs.score(part), obs.middle) for part in (self.outliers, self.attention))
        return self.blending * outliers + attention
