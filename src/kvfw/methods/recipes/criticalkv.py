"""CriticalKV (Feng et al. 2025, arXiv 2502.03805)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SkipValidation

from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import Method, PartOption
from kvfw.core.parts.spec import Kind


class CriticalKV(Method):
    """Any scorer, whose second half of the budget goes by score times the effect of a token's value on the output.

    Of K slots the ``floor(share K)`` of highest score s, then those of highest ``(s_j + epsilon) ||W_o v_j||``; see the
    selector ``critical``.

    Paper: Feng et al. 2025, Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective,
    arXiv 2502.03805.

    Deviations: the norm is L2 by default, see ``critical``. ``criticalkv@adakv`` divides the budget over heads by the
    scorer's scores alone; the paper's code for this case lets a protected token's score be multiplied by its norm.
    """

    scorer: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv"), Field(description="ranks the tokens")]
    share: float = Field(0.5, ge=0, le=1, description="part of the budget that goes by score alone")
    epsilon: float = Field(1e-4, ge=0, description="added to the scores in the second stage")
    norm: Literal["l2", "l1"] = Field("l2", description="norm of a value after the output projection")

    recipe: ClassVar[str] = "select(scorer=$scorer,selector=critical(share=$share,epsilon=$epsilon,norm=$norm))"
