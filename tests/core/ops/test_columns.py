"""Exact attention column sums, block by block, against the whole matrix."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.observations import SCALE, random_row
from kvfw.core.ops import columns as module
from kvfw.core.ops.columns import attention_columns, column_sums
from kvfw.core.state.observation import Columns
from kvfw.core.state.state import KVState, exact_state


def state_of(keys: Tensor, pad: int = 0) -> tuple[KVState, Tensor]:
    """A row of keys ``[Hkv, L, D]`` behind ``pad`` padding slots, and the positions of all its tokens."""
    padded = torch.cat((torch.full_like(keys[:, :1], 50.0).expand(-1, pad, -1), keys), dim=1)[None]
    real = torch.arange(padded.shape[2])[None] >= pad
    positions = (real.cumsum(-1) - 1).float()
    state = exact_state(padded, padded, positions, real)
    return state, positions.masked_fill(~real, -1.0)


def whole_matrix(
    queries: Tensor,
    keys: Tensor,
    local: int,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Sums ``[Hkv, L]`` from the explicit causal attention matrix, in float64; ``bias`` is ``[Hkv, L]``."""
    heads, length, _ = queries.shape
    group = heads // keys.shape[0]
    logits = SCALE * queries.double() @ keys.double().repeat_interleave(group, 0).transpose(-1, -2)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias.double().repeat_interleave(group, 0)[:, None]
    rows, columns = torch.arange(length)[:, None], torch.arange(length)[None]
    exps = logits.masked_fill(columns > rows, -torch.inf).exp()
    denominator = exps.sum(-1, keepdim=True)
    if sink_logits is not None:
        denominator = denominator + sink_logits.double().exp()[:, None, None]
    attention = exps / denominator
    kept = attention * (rows - columns >= local)
    return kept.sum(1).view(keys.shape[0], group, length).mean(1)


@pytest.mark.parametrize("block_elements", [1, 200, 2**22])
@pytest.mark.parametrize("group", [1, 3])
def test_sums_equal_those_of_the_whole_matrix(block_elements: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", block_elements)
    row = random_row(37, seed=1, group=group)
    state, positions = state_of(row.keys)
    found = column_sums(row.queries[None], positions, state, SCALE, (0, 1, 5, 40))
    for local, sums in found.items():
        torch.testing.assert_close(sums[0].double(), whole_matrix(row.queries, row.keys, local), atol=1e-5, rtol=1e-5)
    assert float(found[40].abs().max()) == 0.0


@pytest.mark.parametrize("block_elements", [200, 2**22])
@pytest.mark.parametrize(("softcap", "sinks"), [(1.5, None), (None, True), (1.5, True)])
def test_caps_and_sinks_are_those_of_the_whole_matrix(
    block_elements: int, softcap: float | None, sinks: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", block_elements)
    row = random_row(37, seed=1, group=2)
    # A sink of every kind: one that takes nearly all, one like any token, one of no weight.
    sink_logits = torch.tensor([4.0, 0.0, -60.0, 1.0]) if sinks else None
    state, positions = state_of(row.keys)
    found = column_sums(row.queries[None], positions, state, SCALE, (0, 5), softcap=softcap, sink_logits=sink_logits)
    plain = column_sums(row.queries[None], positions, state, SCALE, (0, 5))
    for local, sums in found.items():
        expected = whole_matrix(row.queries, row.keys, local, softcap, sink_logits)
        torch.testing.assert_close(sums[0].double(), expected, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(sums, plain[local], atol=1e-2)


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_bias_is_added_to_logits_after_the_cap(softcap: float | None) -> None:
    row = random_row(37, seed=1, group=2)
    state, positions = state_of(row.keys)
    # A bias of log m weighs like m tokens.
    bias = torch.rand(state.bias.shape[1:], generator=torch.Generator().manual_seed(3)) * 4
    merged = replace(state, bias=bias[None])
    for local, sums in column_sums(row.queries[None], positions, merged, SCALE, (0, 5), softcap=softcap).items():
        expected = whole_matrix(row.queries, row.keys, local, softcap, bias=bias)
        torch.testing.assert_close(sums[0].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("local", [0, 5])
def test_autocast_does_not_take_digits(local: int) -> None:
    row = random_row(60, seed=1, group=2)
    state, positions = state_of(row.keys)
    expected = column_sums(row.queries[None], positions, state, SCALE, (local,))[local]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(column_sums(row.queries[None], positions, state, SCALE, (local,))[local], expected)


def test_a_huge_sink_overflows_nothing() -> None:
    row = random_row(20, seed=1)
    state, positions = state_of(row.keys)
    sinks = torch.full((row.queries.shape[0],), 500.0)
    sums = column_sums(row.queries[None], positions, state, SCALE, (0,), sink_logits=sinks)[0]
    assert float(sums.abs().max()) == 0.0


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_sinks_of_no_weight_and_of_all(shift: float) -> None:
    """Also where logits are far from 0, and for queries that see nothing."""
    row = random_row(20, seed=1)
    state, positions = state_of(row.keys)
    # Every logit is raised alike: by a coordinate of the keys and the queries of its own.
    keys = torch.cat((state.keys, torch.ones_like(state.keys[..., :1])), dim=-1)
    late = KVState(*(part[:, :, 3:] for part in (keys, state.values, state.positions, state.mass, state.bias)))
    queries = torch.cat((row.queries, torch.full_like(row.queries[..., :1], shift / SCALE)), dim=-1)[None]
    for local in (0, 5):
        without = column_sums(queries, positions, late, SCALE, (local,))[local]
        assert float(without.sum()) > 1
        for sink, share in ((-torch.inf, 1.0), (torch.inf, 0.0), (shift + 500, 0.0), (shift - 200, 1.0)):
            sinks = torch.full((queries.shape[1],), sink)
            sums = column_sums(queries, positions, late, SCALE, (local,), sink_logits=sinks)[local]
            assert torch.equal(sums, share * without)


def test_all_attention_is_accounted_for() -> None:
    row = random_row(50, seed=2)
    state, positions = state_of(row.keys)
    total = column_sums(row.queries[None], positions, state, SCALE, (0,))[0].sum(-1)
    torch.testing.assert_close(total, torch.full_like(total, 50.0), atol=1e-3, rtol=0)


def test_chunks_add_up_to_the_whole() -> None:
    row = random_row(40, seed=3)
    state, positions = state_of(row.keys)
    whole = column_sums(row.queries[None], positions, state, SCALE, (0, 3))
    added = {n: torch.zeros_like(sums) for n, sums in whole.items()}
    for start, stop in ((0, 7), (7, 8), (8, 40)):
        seen, seen_positions = state_of(row.keys[:, :stop])
        part = column_sums(row.queries[None, :, start:stop], seen_positions[:, start:], seen, SCALE, (0, 3))
        for n, sums in part.items():
            added[n][..., :stop] += sums
    for n in whole:
        torch.testing.assert_close(added[n], whole[n], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pad", [50.0, torch.nan])
def test_padding_neither_gives_nor_receives(pad: float) -> None:
    """Also where it is NaN, which attention of a masked row may make it in later layers."""
    row = random_row(20, seed=4)
    alone_state, alone_positions = state_of(row.keys)
    alone = column_sums(row.queries[None], alone_positions, alone_state, SCALE, (0,))[0]
    state, positions = state_of(row.keys, pad=6)
    state.keys[:, :, :6] = pad
    queries = torch.cat((torch.full_like(row.queries[:, :1], pad).expand(-1, 6, -1), row.queries), dim=1)[None]
    padded = column_sums(queries, positions, state, SCALE, (0,))[0]
    assert float(padded[..., :6].abs().max()) == 0.0
    sinks = torch.zeros(queries.shape[1])
    with_sinks = column_sums(queries, positions, state, SCALE, (0,), sink_logits=sinks)[0]
    assert float(with_sinks[..., :6].abs().max()) == 0.0
    assert not bool(with_sinks.isnan().any())
    torch.testing.assert_close(padded[..., 6:], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block_elements", [1, 400, 2**22])
def test_all_heads_at_once_as_on_an_accelerator(block_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    row = random_row(37, seed=1, group=3)
    state, positions = state_of(row.keys, pad=4)
    queries = torch.nn.functional.pad(row.queries, (0, 0, 4, 0))[None]
    sinks = torch.linspace(-1, 3, row.queries.shape[0])
    monkeypatch.setattr(module, "_block_size", lambda device, kv_heads: (kv_heads, block_elements))
    found = column_sums(queries, positions, state, SCALE, (0, 5), softcap=1.5, sink_logits=sinks)
    for local, sums in found.items():
        expected = whole_matrix(row.queries, row.keys, local, 1.5, sinks)
        torch.testing.assert_close(sums[0, :, 4:].double(), expected, atol=1e-5, rtol=1e-5)


def test_queries_before_every_slot_add_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 1)
    row = random_row(12, seed=1)
    state, positions = state_of(row.keys)
    late = KVState(*(part[:, :, 9:] for part in (state.keys, state.values, state.positions, state.mass, state.bias)))
    found = column_sums(row.queries[None], positions, late, SCALE, (0,))[0]
    # The last three queries see one, two and three slots.
    assert float(found.sum()) == pytest.approx(3 * row.keys.shape[0], rel=1e-5)
    torch.testing.assert_close(
        column_sums(row.queries[None, :, 1:3], positions[:, 1:3], late, SCALE, (0,))[0], 0 * found
    )


@pytest.mark.parametrize(("blocks", "dtype"), [(400, torch.float32), (1600, torch.float16)])
def test_rows_of_several_lengths_with_all_that_a_logit_can_meet(
    blocks: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", blocks)
    long, short = random_row(41, seed=5, group=3), random_row(35, seed=6, group=3)
    keys = torch.stack((long.keys, torch.nn.functional.pad(short.keys, (0, 0, 6, 0), value=torch.nan))).to(dtype)
    queries = torch.stack((long.queries, torch.nn.functional.pad(short.queries, (0, 0, 6, 0)))).to(dtype)
    real = torch.arange(41) >= torch.tensor([[0], [6]])
    positions = (real.cumsum(-1).float() - 1).masked_fill(~real, -1.0)
    state = exact_state(keys, keys, positions, real)
    bias = 4 * torch.rand(2, 41, generator=torch.Generator().manual_seed(3))
    state = replace(state, bias=state.bias + bias[:, None])
    sinks = torch.linspace(-1, 3, queries.shape[1])
    found = column_sums(queries, positions, state, SCALE, (0, 5), softcap=1.5, sink_logits=sinks)
    for local, sums in found.items():
        for row, pad in ((0, 0), (1, 6)):
            own_queries, own_keys = (part[row, :, pad:].float() for part in (queries, keys))
            own_bias = bias[row, pad:].expand(keys.shape[1], -1)
            expected = whole_matrix(own_queries, own_keys, local, 1.5, sinks, own_bias)
            torch.testing.assert_close(sums[row, :, pad:].double(), expected, atol=1e-5, rtol=1e-5)
            assert float(sums[row, :, :pad].abs().sum()) == 0.0


def sums_of_three_rows(seed: int, order: list[int]) -> Tensor:
    """Attention from the last 8 queries of three padded rows, which stand in this order."""
    generator = torch.Generator().manual_seed(seed)
    length = int(torch.randint(5, 60, (1,), generator=generator))
    keys = torch.randn(3, 2, length, 8, generator=generator)[order]
    queries = torch.randn(3, 4, length, 8, generator=generator)[order]
    real = (torch.arange(length) >= torch.randint(0, length // 2, (3, 1), generator=generator))[order]
    positions = (real.cumsum(-1).float() - 1).masked_fill(~real, -1.0)
    state = exact_state(keys, keys, positions, real)
    return column_sums(queries[:, :, -8:], positions[:, -8:], state, SCALE, (0,))[0]


def test_a_row_comes_out_the_same_to_the_bit_wherever_it_stands() -> None:
    for seed in range(100):
        forwards, backwards = (sums_of_three_rows(seed, order) for order in ([0, 1, 2], [2, 1, 0]))
        assert torch.equal(forwards[[2, 1, 0]], backwards)


def test_a_query_of_hidden_state_zero_adds_nothing_per_norm() -> None:
    row = random_row(6, 3)
    at = torch.arange(6.0)[None]
    state = exact_state(row.keys[None], row.values[None], at, at >= 0)
    how = Columns(over="max", heads="each", per_norm=True)
    norms = torch.tensor([[1.0, 1, 0, 1, 1, 1]])
    found = attention_columns(row.queries[None], at, state, 1.0, (how,), norms=norms)[how]
    without = attention_columns(
        row.queries[None], at.masked_fill(norms == 0, -1.0), state, 1.0, (how,), norms=torch.ones(1, 6)
    )[how]
    torch.testing.assert_close(found, without)


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_totals_stand_for_slots_that_are_left_out(softcap: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 20 of 37 slots, with the totals of all: the same numbers as with all slots given."""
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 200)
    row = random_row(37, seed=1, group=3)
    state, positions = state_of(row.keys)
    queries, at = row.queries[None, :, 20:], positions[:, 20:]
    wanted = [Columns(0), Columns(5, over="square"), Columns(0, over="max", heads="each")]
    whole = attention_columns(queries, at, state, SCALE, wanted, softcap=softcap)
    keys = row.keys.repeat_interleave(3, 0)
    logits = SCALE * row.queries[:, 20:] @ keys.transpose(-1, -2)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    later = torch.arange(37)[None] > torch.arange(20, 37)[:, None]
    totals = logits.masked_fill(later, -torch.inf).logsumexp(-1)[None]
    first = KVState(*(part[:, :, :20] for part in state.parts))
    found = attention_columns(queries, at, first, SCALE, wanted, softcap=softcap, totals=totals)
    for each in wanted:
        torch.testing.assert_close(found[each], whole[each][..., :20], atol=1e-6, rtol=1e-5)
