"""LU-KV (Tang et al. 2026, arXiv 2602.08585)."""

from typing import Annotated, ClassVar

from pydantic import Field

from kvfw.core.parts.files import FileOption
from kvfw.core.parts.part import Method


class LUKV(Method):
    """Expected Attention with slots by layer, head and ratio, from a file.

    The scorer ``expected(epsilon=0.02)`` under the allocator ``table`` with a curve.

    Paper: Tang et al. 2026, Predicting Future Utility: Global Combinatorial Optimization for Task-Agnostic KV Cache
    Eviction, arXiv 2602.08585.

    Deviations: those of ``expected`` and ``table``. The file is the user's: the paper's curves are of single models.
    """

    file: Annotated[str, FileOption()] = Field(
        description="path of the table, see the allocator", examples=["heads.json"]
    )

    recipe: ClassVar[str] = "expected(epsilon=0.02)@table(file=$file)"
