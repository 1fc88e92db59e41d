"""Random layers as a model would have cached them, one row at a time or as a left-padded batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvfw.core.state.observation import PROMPT, Columns, Needs, Observation, References, protect
from kvfw.core.state.rope import Rope
from kvfw.core.state.state import KVState
from kvfw.verify.instruments.observed import ROPE, SCALE, PromptRow, random_row, received
from kvfw.verify.instruments.observed import observe as observed

#: The rows are the conformance suite's own.
__all__ = [
    "ROPE",
    "SCALE",
    "PromptRow",
    "Slot",
    "check_well_formed",
    "observe",
    "random_row",
    "received",
    "reordered",
    "rows_of",
    "same_bits",
    "slots_of",
]


REDUCTIONS: tuple[dict[str, Any], ...] = (
    {"over": "sum"},
    {"over": "sum", "heads": "each"},
    {"over": "square", "heads": "each"},
    {"over": "max", "heads": "each"},
)
#: All that any part of kvfw may ask for.
EVERYTHING = Needs(
    lexical=True,
    projection=True,
    columns=frozenset(
        Columns(**how, per_norm=per_norm, source=source)
        for how in REDUCTIONS
        for per_norm in (False, True)
        for source in (PROMPT, "repeat")
    ),
    references=frozenset(References(1024, source) for source in (PROMPT, "repeat")),
    moments=frozenset({0, 4}),
    ids=True,
    token_types=True,
)


def observe(
    rows: Sequence[PromptRow],
    *,
    sinks: int = 2,
    recent: int = 3,
    window: int = 8,
    rope: Rope | None = ROPE,
    locals_: Sequence[int] = (0,),
) -> Observation:
    """The rows as a left-padded batch, with all that any scorer may ask for.

    The padding holds large numbers: whoever looks at it is found out.
    """
    found = observed(rows, replace(EVERYTHING, queries=window, column_sums=frozenset(locals_)), rope=rope)
    return replace(found, protected=protect(found.state.valid, sinks, recent))


def with_hidden_padding(obs: Observation) -> Observation:
    """The same, with NaN for the keys and values of empty slots, which nothing may look at."""
    empty = ~obs.state.valid[..., None]
    keys, values = (x.masked_fill(empty, torch.nan) for x in (obs.state.keys, obs.state.values))
    return replace(obs, state=replace(obs.state, keys=keys, values=values))


def reordered(obs: Observation, order: Sequence[int]) -> Observation:
    """The same observation with its rows in another order, or only some of them."""
    index = list(order)
    assert obs.queries is not None
    assert obs.query_positions is not None
    assert obs.lexical is not None
    return replace(
        obs,
        state=rows_of(obs.state, index),
        protected=obs.protected[index],
        queries=obs.queries[index],
        query_positions=obs.query_positions[index],
        column_sums={local: sums[index] for local, sums in obs.column_sums.items()},
        lexical=obs.lexical[index],
        columns={each: part[index] for each, part in obs.columns.items()},
        references={each: (queries[index], at[index]) for each, (queries, at) in obs.references.items()},
        moments={n: part.map_rows(lambda x: x[index]) for n, part in obs.moments.items()},
        ids=None if obs.ids is None else obs.ids[index],
        types=None if obs.types is None else obs.types[index],
    )


def rows_of(state: KVState, index: Sequence[int]) -> KVState:
    """Some rows of a state, in the given order."""
    rows = list(index)
    return KVState(state.keys[rows], state.values[rows], state.positions[rows], state.mass[rows], state.bias[rows])


def same_bits(left: KVState, right: KVState) -> bool:
    """Equal in every tensor, bit for bit up to the sign of zero."""
    return all(torch.equal(a, b) for a, b in zip(left.parts, right.parts, strict=True))


@dataclass(frozen=True)
class Slot:
    """One slot of one head, for comparisons that do not care about padding."""

    position: float
    mass: float
    bias: float
    key: tuple[float, ...]
    value: tuple[float, ...]


def slots_of(state: KVState, row: int, head: int) -> list[Slot]:
    """The valid slots of a head, in their order."""
    columns = [part[row, head].tolist() for part in state.parts]
    return [
        Slot(position, mass, bias, tuple(key), tuple(value))
        for key, value, position, mass, bias in zip(*columns, strict=True)
        if mass > 0
    ]


def check_well_formed(state: KVState) -> None:
    """What holds of every state: ascending, exact first, empty slots on the left and marked as such."""
    rows, heads, width = state.mass.shape
    for row in range(rows):
        for head in range(heads):
            valid = state.valid[row, head].tolist()
            assert valid == sorted(valid), "empty slots belong on the left"
            slots = slots_of(state, row, head)
            order = [(slot.position, slot.mass != 1) for slot in slots]
            assert order == sorted(order)
            assert all(slot.position >= 0 and slot.mass >= 1 and slot.bias > -torch.inf for slot in slots)
            empty = slice(0, width - len(slots))
            assert bool((state.positions[row, head, empty] == -1).all())
            assert bool((state.mass[row, head, empty] == 0).all())
            assert bool((state.bias[row, head, empty] == -torch.inf).all())
    assert not state.keys.isnan().any()
    assert not state.values.isnan().any()
