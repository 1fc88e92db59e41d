"""What a scorer may look at, and what it must ask for."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from kvfw.core.rope import Rope
from kvfw.core.state import KVState
from kvfw.errors import RunError


@dataclass(frozen=True)
class Needs:
    """What has to be observed for a scorer. Nothing is captured that no stage needs.

    Args:
        queries: how many of the last queries, 0 for none.
    """

    queries: int = 0

    def __or__(self, other: "Needs") -> "Needs":
        """Needs that cover both."""
        return Needs(queries=max(self.queries, other.queries))


@dataclass(frozen=True)
class Observation:
    """All that a scorer may look at for one layer at one compression event.

    Args:
        state: the whole prompt's cache of this layer.
        protected: sinks, recent tokens and padding; they are kept (padding: dropped) whatever their score.
        scale: what the model multiplies query-key products by.
        layer: index of the layer in the model.
        rope: how this layer's keys are rotated; None where the model rotates nothing.
        queries: the last ``w`` rotated queries, where asked for; w is at most the prompt's length.
        query_positions: their positions; -1 for padding.
        output_projection: weight of the layer's output projection, where the model has one.
    """

    state: KVState
    protected: Bool[Tensor, "B Hkv N"]
    scale: float
    layer: int
    rope: Rope | None = None
    queries: Float[Tensor, "B H w Dk"] | None = None
    query_positions: Float32[Tensor, "B w"] | None = None
    output_projection: Float[Tensor, "out in"] | None = None

    def narrowed(self, needs: Needs) -> "Observation":
        """The same observation without anything that was not asked for.

        What a part sees then never depends on what its neighbours asked for.
        """
        if needs.queries == 0 or self.queries is None or self.query_positions is None:
            return replace(self, queries=None, query_positions=None)
        # Contiguous, so that the arithmetic is bit for bit that of a capture of exactly this many queries.
        return replace(
            self,
            queries=self.queries[:, :, -needs.queries :].contiguous(),
            query_positions=self.query_positions[:, -needs.queries :].contiguous(),
        )

    def window(self) -> tuple[Float[Tensor, "B H w Dk"], Float32[Tensor, "B w"]]:
        """The last queries and their positions.

        Raises:
            RunError: they were not asked for in the part's needs.
        """
        if self.queries is None or self.query_positions is None:
            raise RunError("a scorer looked at the last queries without declaring Needs(queries=...)")
        return self.queries, self.query_positions

    @property
    def middle(self) -> Bool[Tensor, "B Hkv N"]:
        """Slots that compression may drop or merge."""
        return self.state.valid & ~self.protected


def protect(valid: Bool[Tensor, "B Hkv N"], sinks: int, recent: int) -> Bool[Tensor, "B Hkv N"]:
    """The first ``sinks`` and last ``recent`` real slots of every row and head, and everything that is not real."""
    rank = valid.to(torch.int64).cumsum(-1)
    count = rank[..., -1:]
    return ~valid | (rank <= sinks) | (rank > count - recent)
