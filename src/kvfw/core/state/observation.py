"""What a scorer may look at, and what it must declare to see it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float32, Int8, Int64
from torch import Tensor

from kvfw.core.state.moments import Moments
from kvfw.core.state.rope import Rope
from kvfw.core.state.state import KVState
from kvfw.errors import RunError

#: The source of what is observed while the prompt is read; any other source is the name of a probe.
PROMPT: Final = "prompt"
#: ``Needs.queries`` for every query of the prompt.
ALL: Final = "all"


def probe_name(probe: str) -> str:
    """Validates the probe of an option; a ValueError if it is the prompt itself."""
    if probe == PROMPT:
        raise ValueError("a probe is repeat, or the path of a text file")
    return probe


@dataclass(frozen=True)
class Columns:
    """One number per slot, reduced from the attention it received: a column of ``A`` made one number, streamed.

    Args:
        distance: only attention from queries at least this many positions later.
        over: ``sum``, ``max`` or sum of ``square`` over the queries.
        heads: ``mean`` over the query heads of a KV head, or ``each`` query head by itself.
        per_norm: divide a query's attention by the norm of its token's hidden state, as the layer's attention reads it.
        source: ``prompt``, or a probe: ``repeat``, or the path of a text file (see :mod:`kvfw.model.session.probing`).

    Raises:
        ValueError: a maximum over the query heads' mean, which would need all attention at once.
    """

    distance: int = 0
    over: Literal["sum", "max", "square"] = "sum"
    heads: Literal["mean", "each"] = "mean"
    per_norm: bool = False
    source: str = PROMPT

    def __post_init__(self) -> None:
        if self.over == "max" and self.heads == "mean":
            raise ValueError("a maximum is taken head by head (heads='each'); reduce its heads afterwards")


@dataclass(frozen=True)
class References:
    """Reference queries: at most ``count`` rotated queries of a source, evenly spaced over its tokens."""

    count: int
    source: str = PROMPT


@dataclass(frozen=True)
class Needs:
    """What has to be observed for a part. Nothing else is captured.

    Args:
        queries: number of last queries, 0 for none, or ``"all"``.
        column_sums: for every ``n`` in it, the attention each key received from all queries at least ``n`` positions
            later, summed over the queries. Kept up to date through later compressions.
        lexical: per-token lexical features of the prompt's text.
        projection: the weight of the layer's output projection.
        columns: other reductions of the attention received, over the prompt's queries or a probe's.
        references: reference queries.
        moments: for every ``n`` in it, count, mean and scatter of the queries before RoPE, without the first n tokens.
        ids: token ids of the prompt.
        token_types: class of every token (:class:`kvfw.core.state.lexical.TokenType`).
    """

    queries: int | Literal["all"] = 0
    column_sums: frozenset[int] = frozenset()
    lexical: bool = False
    projection: bool = False
    columns: frozenset[Columns] = frozenset()
    references: frozenset[References] = frozenset()
    moments: frozenset[int] = frozenset()
    ids: bool = False
    token_types: bool = False

    def __or__(self, other: "Needs") -> "Needs":
        """Needs that cover both."""
        everything = ALL in (self.queries, other.queries)
        return Needs(
            queries=ALL if everything else max(int(self.queries), int(other.queries)),
            column_sums=self.column_sums | other.column_sums,
            lexical=self.lexical or other.lexical,
            projection=self.projection or other.projection,
            columns=self.columns | other.columns,
            references=self.references | other.references,
            moments=self.moments | other.moments,
            ids=self.ids or other.ids,
            token_types=self.token_types or other.token_types,
        )

    @property
    def probes(self) -> frozenset[str]:
        """The probes it takes."""
        sources = {each.source for each in self.columns} | {each.source for each in self.references}
        return frozenset(sources - {PROMPT})

    @property
    def text(self) -> bool:
        """Whether the prompt's token ids are needed for it, and not only its vectors."""
        return self.lexical or self.ids or self.token_types

    def last(self, tokens: int) -> int:
        """How many last queries of a prompt of so many tokens it needs."""
        return tokens if self.queries == ALL else min(self.queries, tokens)

    def of_source(self, source: str) -> "Needs":
        """Only the columns and references of one source."""
        return Needs(
            columns=frozenset(each for each in self.columns if each.source == source),
            references=frozenset(each for each in self.references if each.source == source),
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

    Everything from ``queries`` to ``types`` is there only if declared in :class:`Needs`.

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
        columns: reductions of the attention each slot received, per KV head, or per query head where declared so.
        references: reference queries, rotated, with their positions; a position of -1 is padding.
        moments: of the prompt's queries before RoPE, by number of first tokens left out.
        ids: token ids of the slots; -1 for padding.
        types: classes of the slots' tokens; -1 for padding.
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
    columns: Mapping[Columns, Float32[Tensor, "B heads N"]] = field(default_factory=dict)
    references: Mapping[References, tuple[Float[Tensor, "B H n Dk"], Float32[Tensor, "B n"]]] = field(
        default_factory=dict
    )
    moments: Mapping[int, Moments] = field(default_factory=dict)
    ids: Int64[Tensor, "B N"] | None = None
    types: Int8[Tensor, "B N"] | None = None
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
        elif needs.queries != ALL:
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
            columns={each: found for each, found in self.columns.items() if each in needs.columns},
            references={each: found for each, found in self.references.items() if each in needs.references},
            moments={n: found for n, found in self.moments.items() if n in needs.moments},
            ids=self.ids if needs.ids else None,
            types=self.types if needs.token_types else None,
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

    def column(self, columns: Columns) -> Float32[Tensor, "B heads N"]:
        """A reduction of the attention each slot received, 0 for empty slots; a RunError if it is not declared."""
        if columns not in self.columns:
            raise RunError(f"a part looked at columns of attention without declaring Needs(columns={{{columns}}})")
        return self.columns[columns]

    def reference(self, references: References) -> tuple[Float[Tensor, "B H n Dk"], Float32[Tensor, "B n"]]:
        """Reference queries and their positions, -1 for padding; a RunError if they are not declared."""
        if references not in self.references:
            raise RunError(f"a part looked at reference queries without declaring Needs(references={{{references}}})")
        return self.references[references]

    def query_moments(self, left_out: int) -> Moments:
        """Moments of the prompt's queries before RoPE, without the first ``left_out``; a RunError if not declared."""
        if left_out not in self.moments:
            raise RunError(f"a part looked at moments of queries without declaring Needs(moments={{{left_out}}})")
        return self.moments[left_out]

    def token_ids(self) -> Int64[Tensor, "B N"]:
        """Token ids of the slots, -1 for padding; a RunError if they are not declared."""
        if self.ids is None:
            raise RunError("a part looked at token ids without declaring Needs(ids=True)")
        return self.ids

    def token_types(self) -> Int8[Tensor, "B N"]:
        """Classes of the slots' tokens, -1 for padding; a RunError if they are not declared."""
        if self.types is None:
            raise RunError("a part looked at token types without declaring Needs(token_types=True)")
        return self.types

    @property
    def middle(self) -> Bool[Tensor, "B Hkv N"]:
        """Slots that compression may drop or merge."""
        return self.state.valid & ~self.protected


def protect(valid: Bool[Tensor, "B Hkv N"], sinks: int, recent: int) -> Bool[Tensor, "B Hkv N"]:
    """The first ``sinks`` and last ``recent`` real slots of every row and head, and everything that is not real."""
    rank = valid.to(torch.int64).cumsum(-1)
    count = rank[..., -1:]
    return ~valid | (rank <= sinks) | (rank > count - recent)
