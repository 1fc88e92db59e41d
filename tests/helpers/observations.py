"""Random layers as a model would have cached them, one row at a time or as a left-padded batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvfw.core.observation import Observation, protect
from kvfw.core.rope import Rope, rotate
from kvfw.core.state import KVState, exact_state

SCALE = 0.4
#: Keys have 8 coordinates, of which 6 turn; values have 5, so that a mix-up of the two cannot pass.
KEY_DIM, VALUE_DIM = 8, 5
ROPE = Rope(inv_freq=torch.tensor([1.0, 0.1, 0.01]), scaling=1.25)


@dataclass(frozen=True)
class Row:
    """One prompt: rotated keys ``[Hkv, L, Dk]`` and queries ``[H, L, Dk]``, values ``[Hkv, L, Dv]``, rarity ``[L]``."""

    keys: Tensor
    values: Tensor
    queries: Tensor
    rare: Tensor

    @property
    def length(self) -> int:
        return self.keys.shape[1]


def random_row(length: int, seed: int, *, kv_heads: int = 2, group: int = 2, dtype: torch.dtype = torch.float32) -> Row:
    g = torch.Generator().manual_seed(seed)
    positions = torch.arange(length, dtype=torch.float32)

    def turned(heads: int) -> Tensor:
        raw = torch.randn(1, heads, length, KEY_DIM, generator=g)
        return rotate(raw, positions.expand(1, heads, length), ROPE)[0].to(dtype)

    return Row(
        keys=turned(kv_heads),
        values=torch.randn(kv_heads, length, VALUE_DIM, generator=g).to(dtype),
        queries=turned(kv_heads * group),
        rare=(torch.rand(length, generator=g) < 0.3).float(),
    )


def received(row: Row, local: int) -> Tensor:
    """``[Hkv, L]``: attention each key received from queries at least ``local`` positions later."""
    kv_heads, length, _ = row.keys.shape
    group = row.queries.shape[0] // kv_heads
    logits = row.queries.float() @ row.keys.float().repeat_interleave(group, dim=0).mT * SCALE
    distance = torch.arange(length)[:, None] - torch.arange(length)
    attention = logits.masked_fill(distance < 0, -torch.inf).softmax(-1)
    return attention.masked_fill(distance < local, 0.0).sum(1).view(kv_heads, group, length).mean(1)


def observe(
    rows: Sequence[Row],
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
    width = max(row.length for row in rows)

    def padded(parts: Sequence[Tensor]) -> Tensor:
        """Padded in dimension 1."""
        left = [torch.full_like(part[:, :1], 50.0).repeat_interleave(width - part.shape[1], 1) for part in parts]
        return torch.stack([torch.cat(pair, dim=1) for pair in zip(left, parts, strict=True)])

    real = torch.stack([torch.arange(width) >= width - row.length for row in rows])
    positions = (real.cumsum(-1) - 1).to(torch.float32)
    state = exact_state(padded([r.keys for r in rows]), padded([r.values for r in rows]), positions, real)
    w = min(window, width)
    return Observation(
        state=state,
        protected=protect(state.valid, sinks, recent),
        scale=SCALE,
        layer=0,
        rope=rope,
        queries=padded([row.queries for row in rows])[:, :, width - w :].contiguous(),
        query_positions=positions[:, width - w :].contiguous(),
        column_sums={local: padded([received(row, local) for row in rows]) for local in locals_},
        lexical=padded([row.rare[None] for row in rows])[:, 0],
    )


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
    )


def rows_of(state: KVState, index: Sequence[int]) -> KVState:
    """Some rows of a state, in the given order."""
    rows = list(index)
    return KVState(state.keys[rows], state.values[rows], state.positions[rows], state.mass[rows], state.bias[rows])


def parts_of(state: KVState) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return state.keys, state.values, state.positions, state.mass, state.bias


def same_bits(left: KVState, right: KVState) -> bool:
    """Equal in every tensor, bit for bit up to the sign of zero."""
    return all(torch.equal(a, b) for a, b in zip(parts_of(left), parts_of(right), strict=True))


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
    columns = [part[row, head].tolist() for part in parts_of(state)]
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
