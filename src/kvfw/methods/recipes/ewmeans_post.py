"""E-Means, after rotary position embedding."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SkipValidation

from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import Method, PartOption
from kvfw.core.parts.spec import Kind


class EWMeansPost(Method):
    """Attention-weighted k-means centroids of the rotated keys.

    ``k = sum(a k') / sum(a)``, ``v = sum(a v) / sum(a)`` over each cluster, weights ``a`` from the ``weight`` scorer.
    Averaging rotated keys of distant positions shrinks their fast pairs; see ``ewmeans_pre``.

    Source: the founding experiment's description; no public code or paper defines the method further, so this is a
    reconstruction.

    Deviations: unknown, for lack of a reference; initial centres, empty clusters and stopping are kvfw's own, see the
    merger ``ewmeans``.
    """

    iters: int = Field(8, ge=1, le=1000, description="at most this many k-means assignments")
    weight: Annotated[
        Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv"), Field(description="its scores weight the means")
    ]
    bias: Literal["none", "log"] = Field("none", description="add log mass to each merged slot's attention logit")
    block: int | None = Field(None, ge=1, description="cluster within contiguous blocks of this many tokens")

    recipe: ClassVar[str] = "merge(merger=ewmeans(iters=$iters,block=$block),space=post,weight=$weight,bias=$bias)"
