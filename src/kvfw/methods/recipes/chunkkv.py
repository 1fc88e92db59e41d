"""ChunkKV (Liu et al. 2025, arXiv 2502.00299)."""

from typing import Annotated, ClassVar

from pydantic import Field, SkipValidation

from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import Method, PartOption
from kvfw.core.parts.spec import Kind


class ChunkKV(Method):
    """Whole chunks of neighbouring tokens, the same in all heads of a layer, by a scorer's mean scores.

    See the selector ``chunks``.

    Paper: Liu et al. 2025, ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference,
    arXiv 2502.00299.

    Deviations: those of ``chunks``. The default scorer is the attention from the last 32 queries, unpooled, since the
    chunks do the pooling.
    """

    scorer: Annotated[
        Scorer,
        SkipValidation,
        PartOption(Kind.SCORER, "snapkv(window=32,kernel=1)"),
        Field(description="ranks the tokens"),
    ]
    size: int = Field(10, ge=1, description="tokens per chunk")

    recipe: ClassVar[str] = "select(scorer=$scorer,selector=chunks(size=$size))"
