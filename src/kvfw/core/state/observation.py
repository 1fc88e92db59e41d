"""What a scorer may look at, and what it must declare to see it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from kvfw.core.state.rope import Rope
from kvfw.core.state.state import KVState
from kvfw.errors import RunError


@dataclass(frozen=True)
class Needs:
    """What has to be observed for a scorer. Nothing else is captured.

    Args:
        queries: number of last queries, 0 for none.
        column_sums: for every ``n`` in it, the attention each key received from all queries at least ``n`` positions
            later, summed over the queries.
        lexical: per-token lexical features of the prompt's text.
        projection: the weight of the layer's output projection.
    """

    queries: int = 0
    column_sums: frozenset[int] = frozenset()
    lexical: bool = False
    projection: bool = False

    def __or__(self, other: "Needs") -> "Needs":
        """Needs that cover both."""
        return Needs(
            queries=max(self.queries, other.queries),
            column_sums=self.column_sums | other.column_sums,
            lexical=self.lexical or other.lexical,
            projection=self.projection or other.projection,
        )


@runtime_checkable
class Scoring(Protocol):
    """A scorer as :meth:`Observation.score` uses it; see :class:`kvfw.core.contracts.parts.Scorer`."""

    @property
    def needs(self) -> Needs: ...

    def score(self, obs: Any) -> Float[Tensor, "B Hkv N"]: ...


@dataclass(frozen=True)
class Observation:
    """All that a scorer or a stage may look at for one layer at one compression event.

    ``queries``, ``column_sums``, ``lexical`` and ``output_projection`` are there only if declared in :class:`Needs`.

    Args:
        state: the whole prompt's cache of this layer.
        protected: sinks, recent tokens and padding; they are kept (padding: dropped) whatever their score.
        scale: the model's factor on query-key products.
        softcap: ``c`` if the model caps the scaled products to ``c tanh(x / c)``, before any bias; else None.
        sink_logits: logit of each query head's own attention sink, which takes part in the softmax but has no value;
            None if the model has none.
        layer: index of the layer in the model.
        rope: how this layer's keys are rotated; None if they are not.
        queries: the last ``w`` rotated queries; w is at most the prompt's length.
        query_positions: their positions; -1 for padding.
        column_sums: by distance, exact sums over all queries of the attention each slot received, mean over the query
            heads of each KV head.
        lexical: 1 for tokens whose text looks rare (see :mod:`kvfw.core.state.lexical`), else 0.
        output_projection: weight of the layer's output projection.
        narrowed_to: needs of the part that sees this observation; None if it is not narrowed.
        score_of: implements :meth:`score` during a compression: checks scores, and calls every scorer once.
    """

    state: KVState
    protected: Bool[Tensor, "B Hkv N"]
    scale: float
    layer: int
    rope: Rope | None = None
    queries: Float[Tensor, "B H w Dk"] | None = None
    query_positions: Float32[Tensor, "B w"] | None = None
    column_sums: Mapping[int, Float32[Tensor, "B Hkv N"]] = field(default_factory=dict)
    lexical: Float32[Tensor, "B N"] | None = None
    output_projection: Float[Tensor, "out in"] | None = None
    softcap: float | None = None
    sink_logits: Float[Tensor, " H"] | None = None
    narrowed_to: Needs | None = None
    score_of: Callable[[Any], Float[Tensor, "B Hkv N"]] | None = field(default=None, repr=False, compare=False)

    def score(self, inner: Scoring) -> Float[Tensor, "B Hkv N"]:
        """Scores of a scorer that a part holds; the scorer sees only what it declares itself.

        During a compression it is called once, however many parts hold it, and its scores are checked.

        Raises:
            RunError: the calling part's needs do not cover those of ``inner``.
        """
        if self.narrowed_to is not None and self.narrowed_to | inner.needs != self.narrowed_to:
            raise RunError(
                f"a part asked for the scores of {type(inner).__name__} without declaring what that scorer needs; add "
                "the inner scorer's `needs` to its own with |"
            )
        return inner.score(self.narrowed(inner.needs)) if self.score_of is None else self.score_of(inner)

    def narrowed(self, needs: Needs) -> "Observation":
        """The observation reduced to these needs, so that what a part sees never depends on other parts."""
        queries, positions = self.queries, self.query_positions
        if needs.queries == 0 or queries is None or positions is None:
            queries = positions = None
        else:
            # Contiguous, so that results are bit for bit those of a capture of exactly this many queries.
            queries = queries[:, :, -needs.queries :].contiguous()
            positions = positions[:, -needs.queries :].contiguous()
        return replace(
            self,
            queries=queries,
            query_positions=positions,
            column_sums={n: sums for n, sums in self.column_sums.items() if n in needs.column_sums},
            lexical=self.lexical if needs.lexical else None,
            output_projection=self.output_projection if needs.projection else None,
            narrowed_to=needs,
        )

    def window(self) -> tuple[Float[Tensor, "B H w Dk"], Float32[Tensor, "B w"]]:
        """The last queries and their positions; a RunError if the part's needs do not declare them."""
        if self.queries is None or self.query_positions is None:
            raise RunError("a scorer looked at the last queries without declaring Needs(queries=...)")
        return self.queries, self.query_positions

    def received(self, local: int) -> Float32[Tensor, "B Hkv N"]:
        """Attention each slot received from queries at least ``local`` positions later; a RunError if not declared."""
        if local not in self.column_sums:
            raise RunError(f"a scorer looked at column sums without declaring Needs(column_sums={{{local}}})")
        return self.column_sums[local]

    def rarity(self) -> Float32[Tensor, "B N"]:
        """Lexical rarity of every token; a RunError if the part's needs do not declare it."""
        if self.lexical is None:
            raise RunError("a scorer looked at lexical features without declaring Needs(lexical=True)")
        return self.lexical

    def projection(self) -> Float[Tensor, "out in"]:
        """Weight of the output projection; a RunError if not declared. Query head h has columns h Dv to (h + 1) Dv."""
        if self.output_projection is None:
            raise RunError("a scorer looked at the output projection without declaring Needs(projection=True)")
        return self.output_projection

    @property
    def middle(self) -> Bool[Tensor, "B Hkv N"]:
        """Slots that compression may drop or merge."""
        return self.state.valid & ~self.protected


def protect(valid: Bool[Tensor, "B Hkv N"], sinks: int, recent: int) -> Bool[Tensor, "B Hkv N"]:
    """The first ``sinks`` and last ``recent`` real slots of every row and head, and everything that is not real."""
    rank = valid.to(torch.int64).cumsum(-1)
    count = rank[..., -1:]
    return ~valid | (rank <= sinks) | (rank > count - recent)
