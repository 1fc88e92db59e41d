"""HeadKV (Fu et al. 2024, arXiv 2410.19258)."""

from typing import Annotated, ClassVar

from pydantic import Field

from kvfw.core.parts.files import FileOption
from kvfw.core.parts.part import Method


class HeadKV(Method):
    """SnapKV with slots by the importance of heads, from a file.

    See the scorer ``snapkv`` and the allocator ``table``: every head gets the part ``floor`` of an equal share, the
    rest goes by the file's weights.

    Paper: Fu et al. 2024, Not All Heads Matter: A Head-Level KV Cache Compression Method with Integrated Retrieval
    and Reasoning, arXiv 2410.19258.

    Deviations: those of ``snapkv`` and ``table``. The paper tries ``beta`` from 1.005 to 10, that is ``floor = 1 -
    1 / beta`` from 0.005 to 0.9; half is kvfw's default. The file is the user's: the paper's weights are those of
    two models.
    """

    file: Annotated[str, FileOption()] = Field(
        description="path of the table, see the allocator", examples=["heads.json"]
    )
    floor: float = Field(0.5, ge=0, le=1, description="part of an equal share that every head gets")
    window: int = Field(32, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(7, ge=1, description="pooling width in tokens, odd")

    recipe: ClassVar[str] = "snapkv(window=$window,kernel=$kernel,pool=max)@table(file=$file,floor=$floor)"
