"""Random observations of a layer, so that compositions run without a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvfw.core.ops.columns import attention_columns
from kvfw.core.state.lexical import TokenType
from kvfw.core.state.moments import Moments, moments_of
from kvfw.core.state.observation import PROMPT, Columns, Needs, Observation, References, protect
from kvfw.core.state.rope import Rope, rotate, unrotate
from kvfw.core.state.state import KVState, exact_state
from kvfw.verify.instruments.states import FIELDS

SINKS, RECENT = 2, 3
SCALE = 0.4
#: Keys have 8 coordinates, of which 6 rotate, and values have 5, so that no two of these numbers can be confused.
KEY_DIM, VALUE_DIM, OUT_DIM = 8, 5, 12
ROPE = Rope(inv_freq=torch.tensor([1.0, 0.1, 0.01]), scaling=1.25)
#: Three prompts of different length.
LENGTHS = (45, 37, 30)
#: Padding holds this in every tensor: a part that reads it gives wrong results.
PADDING = 50.0


@dataclass(frozen=True)
class PromptRow:
    """A prompt: rotated keys ``[Hkv, L, Dk]`` and queries ``[H, L, Dk]``, values ``[Hkv, L, Dv]``, rarity ``[L]``."""

    keys: Tensor
    values: Tensor
    queries: Tensor
    rare: Tensor

    @property
    def length(self) -> int:
        """L."""
        return self.keys.shape[1]

    @property
    def ids(self) -> Tensor:
        """Token ids ``[L]``."""
        return (self.rare * 1000).long() + torch.arange(self.length) % 7

    @property
    def types(self) -> Tensor:
        """Token types ``[L]``: a special token first, punctuation for every rare one."""
        first = torch.arange(self.length) == 0
        return torch.where(first, int(TokenType.SPECIAL), self.rare.long() * int(TokenType.PUNCTUATION))


def random_row(
    length: int, seed: int, *, kv_heads: int = 2, group: int = 2, dtype: torch.dtype = torch.float32
) -> PromptRow:
    """A prompt of random tokens, determined by the arguments."""
    g = torch.Generator().manual_seed(seed)
    positions = torch.arange(length, dtype=torch.float32)

    def turned(heads: int) -> Tensor:
        raw = torch.randn(1, heads, length, KEY_DIM, generator=g)
        return rotate(raw, positions.expand(1, heads, length), ROPE)[0].to(dtype)

    return PromptRow(
        keys=turned(kv_heads),
        values=torch.randn(kv_heads, length, VALUE_DIM, generator=g).to(dtype),
        queries=turned(kv_heads * group),
        rare=(torch.rand(length, generator=g) < 0.3).float(),
    )


def three_rows() -> list[PromptRow]:
    """Prompts of different length, for a padded batch."""
    return [random_row(length, seed) for seed, length in enumerate(LENGTHS, start=1)]


def received(row: PromptRow, local: int) -> Tensor:
    """``[Hkv, L]``: attention each key received from queries at least ``local`` positions later."""
    kv_heads, length, _ = row.keys.shape
    group = row.queries.shape[0] // kv_heads
    logits = row.queries.float() @ row.keys.float().repeat_interleave(group, dim=0).mT * SCALE
    distance = torch.arange(length)[:, None] - torch.arange(length)
    attention = logits.masked_fill(distance < 0, -torch.inf).softmax(-1)
    return attention.masked_fill(distance < local, 0.0).sum(1).view(kv_heads, group, length).mean(1)


def observe(rows: Sequence[PromptRow], needs: Needs, *, rope: Rope | None = ROPE) -> Observation:
    """The rows as a left-padded batch, with exactly the observations in ``needs``."""
    width = max(row.length for row in rows)
    real = torch.stack([torch.arange(width) >= width - row.length for row in rows])
    positions = (real.cumsum(-1) - 1).to(torch.float32)
    state = exact_state(
        padded([row.keys for row in rows], width), padded([row.values for row in rows], width), positions, real
    )
    window = needs.last(width)
    heads = rows[0].queries.shape[0]
    projection = torch.randn(OUT_DIM, heads * VALUE_DIM, generator=torch.Generator().manual_seed(0))
    return Observation(
        state=state,
        protected=protect(state.valid, SINKS, RECENT),
        scale=SCALE,
        layer=0,
        rope=rope,
        queries=padded([row.queries for row in rows], width)[:, :, width - window :].contiguous() if window else None,
        query_positions=positions[:, width - window :].contiguous() if window else None,
        column_sums={n: padded([received(row, n) for row in rows], width) for n in sorted(needs.column_sums)},
        lexical=padded([row.rare[None] for row in rows], width)[:, 0] if needs.lexical else None,
        output_projection=projection.to(state.keys.dtype) if needs.projection else None,
        columns={each: padded([column(row, each) for row in rows], width) for each in needs.columns},
        references={each: _references(rows, each, width) for each in needs.references},
        moments={n: _moments([query_moments(row, n, rope) for row in rows]) for n in needs.moments},
        ids=_text([row.ids for row in rows], width) if needs.ids else None,
        types=_text([row.types for row in rows], width).to(torch.int8) if needs.token_types else None,
    )


def column(row: PromptRow, columns: Columns) -> Tensor:
    """``[heads, L]``: a reduction of the attention every key received; a probe's queries see every key."""
    probe = columns.source != PROMPT
    positions = torch.arange(row.length, dtype=torch.float32)[None]
    state = exact_state(row.keys[None], row.values[None], positions, torch.ones_like(positions, dtype=torch.bool))
    queries = (row.queries.flip(1) if probe else row.queries)[None]
    norms = 1 + queries.float().norm(dim=-1).mean(1)
    at = positions + row.length if probe else positions
    return attention_columns(queries, at, state, SCALE, (columns,), norms=norms)[columns][0]


def query_moments(row: PromptRow, left_out: int, rope: Rope | None) -> Moments:
    """Moments of one prompt's queries before RoPE."""
    positions = torch.arange(row.length, dtype=torch.float32)
    queries = row.queries[None] if rope is None else unrotate(row.queries[None], positions.expand(1, 1, -1), rope)
    return moments_of(queries, (positions >= left_out)[None])


def _moments(rows: Sequence[Moments]) -> Moments:
    return Moments(*(torch.cat([getattr(row, name) for row in rows]) for name in ("count", "mean", "scatter")))


def _references(rows: Sequence[PromptRow], asked: References, width: int) -> tuple[Tensor, Tensor]:
    """Queries of every row (of a probe: after the prompt), evenly spaced where they are more than the count."""
    probe, count = asked.source != PROMPT, min(asked.count, width)
    chosen = [torch.linspace(0, row.length - 1, min(count, row.length)).long() for row in rows]
    pairs = list(zip(rows, chosen, strict=True))
    queries = padded([(row.queries.flip(1) if probe else row.queries)[:, at] for row, at in pairs], count)
    places = [at.to(torch.float32) + (row.length if probe else 0) for row, at in pairs]
    return queries, torch.stack([torch.nn.functional.pad(x, (count - len(x), 0), value=-1.0) for x in places])


def _text(rows: Sequence[Tensor], width: int) -> Tensor:
    return torch.stack([torch.nn.functional.pad(row, (width - len(row), 0), value=-1) for row in rows])


def padded(parts: Sequence[Tensor], width: int) -> Tensor:
    """One batch, padded on the left of dimension 1."""
    left = [torch.full_like(part[:, :1], PADDING).repeat_interleave(width - part.shape[1], 1) for part in parts]
    return torch.stack([torch.cat(pair, dim=1) for pair in zip(left, parts, strict=True)])


def _named(obs: Observation) -> dict[str, Tensor]:
    names = ("protected", "queries", "query_positions", "lexical", "output_projection", "sink_logits", "ids", "types")
    return {name: part for name in names if (part := getattr(obs, name)) is not None}


def tensors_of(obs: Observation) -> dict[str, Tensor]:
    """Every tensor of an observation, by name."""
    found = dict(zip(FIELDS, obs.state.parts, strict=True)) | _named(obs)
    if obs.rope is not None:
        found["rope.inv_freq"] = obs.rope.inv_freq
    found |= {f"column_sums[{n}]": part for n, part in obs.column_sums.items()}
    found |= {f"columns[{each}]": part for each, part in obs.columns.items()}
    found |= {f"references[{each}]": queries for each, (queries, _) in obs.references.items()}
    for n, moments in obs.moments.items():
        found |= {f"moments[{n}].{name}": part for name, part in vars(moments).items()}
    return found


def moved(obs: Observation, device: str) -> Observation:
    """The same observation on another device."""
    named: dict[str, Any] = {name: part.to(device) for name, part in _named(obs).items()}
    return replace(
        obs,
        state=KVState(*(x.to(device) for x in obs.state.parts)),
        rope=None if obs.rope is None else replace(obs.rope, inv_freq=obs.rope.inv_freq.to(device)),
        column_sums={n: x.to(device) for n, x in obs.column_sums.items()},
        columns={each: x.to(device) for each, x in obs.columns.items()},
        references={each: (q.to(device), at.to(device)) for each, (q, at) in obs.references.items()},
        moments={n: part.map_rows(lambda x: x.to(device)) for n, part in obs.moments.items()},
        **named,
    )
