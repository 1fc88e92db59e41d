"""The default allocator."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Int64
from torch import Tensor


@dataclass(frozen=True)
class EvenSplit:
    """Every layer and head gets the same number of slots."""

    def allocate(self, total: Int64[Tensor, " B"], kv_heads: Sequence[int]) -> list[Int64[Tensor, "B Hkv"]]:
        """``total / sum(kv_heads)`` slots for each head; the division has no remainder by construction."""
        each = total // sum(kv_heads)
        return [each[:, None].expand(-1, heads).clone() for heads in kv_heads]
