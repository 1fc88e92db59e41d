"""ChunkKV gated by entropy, a method of NVIDIA's kvpress."""

from typing import Annotated, ClassVar

from pydantic import Field, SkipValidation

from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import Method, PartOption
from kvfw.core.parts.spec import Kind


class ChunkKVEntropy(Method):
    """ChunkKV that takes only the best tokens of chunks whose score comes from few of them.

    See the selector ``chunks`` with ``gate=entropy``.

    Source: EntropyGatedChunkKVPress of NVIDIA's kvpress (2026), which has no paper, after ChunkKV: Liu et al. 2025,
    arXiv 2502.00299.

    Deviations: rows of a batch choose for themselves, and heads may have unequal budgets. The middle alone is cut into
    chunks. The default scorer is that of ``chunkkv``.
    """

    scorer: Annotated[
        Scorer,
        SkipValidation,
        PartOption(Kind.SCORER, "snapkv(window=32,kernel=1)"),
        Field(description="ranks the tokens"),
    ]
    size: int = Field(10, ge=1, description="tokens per chunk")
    spiky: int = Field(4, ge=1, description="tokens taken from a spiky chunk")

    recipe: ClassVar[str] = "select(scorer=$scorer,selector=chunks(size=$size,gate=entropy,spiky=$spiky))"
