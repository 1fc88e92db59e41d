"""The same number of slots in every layer and head."""

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Int64
from torch import Tensor

from kvfw.core.contracts.parts import LayerView
from kvfw.core.parts.part import Part, Scope


class UniformBudgets(Part):
    """The same number of slots in every layer and head, as without an allocator.

    ``b_lh = total / number of heads``.

    Source: the rule of most eviction methods, SnapKV among them (Li et al. 2024, arXiv 2404.14469).
    """

    scope: ClassVar[Scope] = "shape"

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """The total is a whole number per head by construction."""
        each = total // sum(layer.kv_heads for layer in layers)
        return [each[:, None].expand(-1, layer.kv_heads).clone() for layer in layers]
