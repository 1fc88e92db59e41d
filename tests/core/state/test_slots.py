"""States, and the laws of taking slots out of them and putting them together."""

from dataclasses import FrozenInstanceError, replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from helpers.observations import (
    check_well_formed,
    observe,
    random_row,
    same_bits,
    slots_of,
)
from kvfw.core.state.observation import Needs, protect
from kvfw.core.state.slots import append, chosen_slots, empty_like, gather, join, rows, take
from kvfw.core.state.state import KVState, exact_state
from kvfw.errors import RunError


def prompt_state(lengths: list[int], seed: int = 0) -> KVState:
    return observe([random_row(length, seed + i) for i, length in enumerate(lengths)]).state


def random_mask(state: KVState, seed: int, share: float = 0.5) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return (torch.rand(state.mass.shape, generator=g) < share) & state.valid


@st.composite
def states(draw: st.DrawFn) -> KVState:
    """Ragged states: prompts of different lengths of which every head lost other slots."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    whole = prompt_state(lengths, draw(st.integers(0, 99)))
    return take(whole, random_mask(whole, draw(st.integers(0, 999)), 0.8))


@st.composite
def masked_states(draw: st.DrawFn) -> tuple[KVState, Tensor]:
    state = draw(states())
    return state, random_mask(state, draw(st.integers(0, 999)), draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])))


def heads(state: KVState) -> list[tuple[int, int]]:
    rows, kv_heads, _ = state.mass.shape
    return [(row, head) for row in range(rows) for head in range(kv_heads)]


@settings(deadline=None, max_examples=25)
@given(masked_states())
def test_take_keeps_the_chosen_in_order_bit_for_bit(case: tuple[KVState, Tensor]) -> None:
    state, chosen = case
    before = [part.clone() for part in state.parts]
    taken = take(state, chosen)
    check_well_formed(taken)
    assert taken.width == int(chosen.sum(-1).max())
    for row, head in heads(state):
        only = replace(state, mass=state.mass.masked_fill(~chosen, 0.0))
        assert slots_of(taken, row, head) == slots_of(only, row, head)
    assert all(torch.equal(a, b) for a, b in zip(state.parts, before, strict=True))


@settings(deadline=None, max_examples=25)
@given(masked_states())
def test_a_partition_joins_to_the_whole(case: tuple[KVState, Tensor]) -> None:
    state, chosen = case
    one, other = take(state, chosen), take(state, state.valid & ~chosen)
    whole = take(state, state.valid)
    assert same_bits(join(one, other), whole)
    assert same_bits(join(other, one), whole)


@settings(deadline=None, max_examples=25)
@given(masked_states())
def test_joining_nothing_changes_nothing(case: tuple[KVState, Tensor]) -> None:
    state, chosen = case
    taken = take(state, chosen)
    nothing = empty_like(state)
    assert nothing.width == 0
    assert nothing.keys.shape[3] == state.keys.shape[3]
    assert same_bits(join(taken, nothing), taken)
    assert same_bits(join(nothing, taken), taken)
    assert same_bits(take(taken, taken.valid), taken)


@settings(deadline=None, max_examples=25)
@given(masked_states(), st.integers(0, 999))
def test_taking_twice_is_taking_both(case: tuple[KVState, Tensor], seed: int) -> None:
    state, chosen = case
    again = random_mask(state, seed)
    both = take(state, chosen & again)
    first = take(state, chosen)
    # The second mask, laid out as the first result is: its slots are found again by their positions.
    wanted = {(row, head): {slot.position for slot in slots_of(both, row, head)} for row, head in heads(state)}
    mask = torch.zeros_like(first.valid)
    for row, head in heads(state):
        for i in range(first.width):
            mask[row, head, i] = float(first.positions[row, head, i]) in wanted[row, head]
    assert same_bits(take(first, mask), both)


@settings(deadline=None, max_examples=25)
@given(states(), st.integers(0, 999))
def test_gather_reads_by_index(state: KVState, seed: int) -> None:
    if state.width == 0:
        return
    g = torch.Generator().manual_seed(seed)
    index = torch.randint(state.width, (*state.mass.shape[:2], 3), generator=g)
    found = gather(state, index)
    for row, head in heads(state):
        for i in range(3):
            source = int(index[row, head, i])
            for got, had in zip(found.parts, state.parts, strict=True):
                assert torch.equal(got[row, head, i], had[row, head, source])


@settings(deadline=None, max_examples=25)
@given(states(), states())
def test_append_puts_new_tokens_last(state: KVState, other: KVState) -> None:
    rows = min(state.mass.shape[0], other.mass.shape[0])
    first, new = (KVState(*(part[:rows] for part in s.parts)) for s in (state, other))
    grown = append(first, new)
    for got, old, added in zip(grown.parts, first.parts, new.parts, strict=True):
        assert torch.equal(got, torch.cat((old, added), dim=2))


def test_results_are_new_tensors() -> None:
    state = prompt_state([5, 3])
    results = [
        take(state, torch.ones_like(state.valid)),
        take(state, state.valid),
        join(state, empty_like(state)),
        gather(state, torch.arange(5).expand(2, 2, 5)),
        append(state, empty_like(state)),
    ]
    held = {part.untyped_storage().data_ptr() for part in state.parts}
    for result in results:
        assert held.isdisjoint(part.untyped_storage().data_ptr() for part in result.parts)


def merged_like(state: KVState, position: float, mass: float) -> KVState:
    """One slot per head at a position of our choice."""
    one = take(state, torch.zeros_like(state.valid).index_fill(2, torch.tensor([0]), True))
    return replace(one, positions=torch.full_like(one.positions, position), mass=torch.full_like(one.mass, mass))


@pytest.mark.parametrize("merged_first", [False, True])
def test_exact_tokens_come_first_at_equal_positions(merged_first: bool) -> None:
    state = prompt_state([4])
    merged = merged_like(state, 2.0, 5.0)
    joined = join(merged, state) if merged_first else join(state, merged)
    assert joined.positions[0, 0].tolist() == [0, 1, 2, 2, 3]
    assert joined.mass[0, 0].tolist() == [1, 1, 1, 5, 1]
    check_well_formed(joined)


def test_slots_alike_keep_their_order() -> None:
    state = prompt_state([4])
    one, two = merged_like(state, 2.0, 5.0), merged_like(state, 2.0, 7.0)
    assert join(one, two).mass[0, 0].tolist() == [5, 7]
    assert join(two, one).mass[0, 0].tolist() == [7, 5]


def test_fractional_positions_are_sorted_in() -> None:
    state = prompt_state([4])
    joined = join(state, merged_like(state, 1.25, 2.0))
    assert joined.positions[0, 1].tolist() == [0, 1, 1.25, 2, 3]


def test_padding_becomes_empty_slots() -> None:
    state = prompt_state([4, 2])
    assert state.positions[:, 0].tolist() == [[0, 1, 2, 3], [-1, -1, 0, 1]]
    assert state.mass[:, 1].tolist() == [[1, 1, 1, 1], [0, 0, 1, 1]]
    assert state.bias[1, 0].tolist() == [-torch.inf, -torch.inf, 0, 0]
    assert state.valid[1, 0].tolist() == [False, False, True, True]
    check_well_formed(take(state, state.valid))


def test_an_exact_state_does_not_copy() -> None:
    keys, values = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 5)
    state = exact_state(keys, values, torch.arange(3.0)[None], torch.ones(1, 3, dtype=torch.bool))
    assert state.keys is keys
    assert state.values is values


def test_bytes_are_those_of_the_storage() -> None:
    big = torch.zeros(1, 2, 100, 4, dtype=torch.float16)
    state = exact_state(
        big[:, :, :3],
        torch.zeros(1, 2, 3, 5, dtype=torch.float16),
        torch.arange(3.0)[None],
        torch.ones(1, 3, dtype=torch.bool),
    )
    assert state.kv_bytes == 2 * (2 * 100 * 4) + 2 * (2 * 3 * 5)
    taken = take(state, state.valid)
    assert taken.kv_bytes == 2 * (2 * 3 * 4 + 2 * 3 * 5)
    assert taken.overhead_bytes == 3 * 4 * 2 * 3


def test_states_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        prompt_state([3]).keys = torch.zeros(1)  # type: ignore[misc]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_sinks_and_recent_are_real_tokens(rows: list[list[bool]], sinks: int, recent: int) -> None:
    valid = torch.tensor(rows)[:, None]
    protected = protect(valid, sinks, recent)
    for row, got in zip(rows, protected[:, 0].tolist(), strict=True):
        real = [i for i, is_real in enumerate(row) if is_real]
        middle = real[sinks : max(len(real) - recent, 0)]
        assert [i for i, kept in enumerate(got) if not kept] == middle


def test_narrowing_shows_only_what_was_asked_for() -> None:
    obs = observe([random_row(9, 0)], window=6)
    assert obs.queries is not None
    narrow = obs.narrowed(Needs(queries=4))
    exact = observe([random_row(9, 0)], window=4)
    queries, positions = narrow.window()
    assert torch.equal(queries, obs.queries[:, :, 2:])
    assert positions.tolist() == [[5, 6, 7, 8]]
    assert exact.queries is not None
    assert queries.stride() == exact.queries.stride()
    assert obs.narrowed(Needs(queries=50)).window()[0].shape[2] == 6
    with pytest.raises(RunError, match=r"without declaring Needs\(queries=\.\.\.\)"):
        obs.narrowed(Needs()).window()


def test_narrowing_hides_sums_and_features_that_were_not_asked_for() -> None:
    obs = observe([random_row(9, 0)], locals_=(0, 4))
    narrow = obs.narrowed(Needs(column_sums=frozenset({4}), lexical=True))
    assert torch.equal(narrow.received(4), obs.column_sums[4])
    assert torch.equal(narrow.rarity(), obs.rarity())
    with pytest.raises(RunError, match=r"without declaring Needs\(column_sums=\{0\}\)"):
        narrow.received(0)
    with pytest.raises(RunError, match=r"without declaring Needs\(lexical=True\)"):
        obs.narrowed(Needs(queries=4)).rarity()


def test_needs_add_up() -> None:
    assert Needs(queries=3) | Needs(queries=8) | Needs() == Needs(queries=8)
    both = Needs(column_sums=frozenset({0})) | Needs(queries=2, column_sums=frozenset({5}), lexical=True)
    assert both == Needs(queries=2, column_sums=frozenset({0, 5}), lexical=True)
    assert Needs() | both == both


def test_rows_are_the_same_however_the_cache_lies_in_memory() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 11, 4, generator=g)
    index = torch.randint(11, (2, 3, 5), generator=g)
    expected = x.gather(2, index[..., None].expand(-1, -1, -1, 4))
    by_token = x.transpose(1, 2).contiguous().transpose(1, 2)
    wider = torch.cat((x, x), dim=3)[..., :4]
    for laid_out in (x, by_token, wider, x[..., :1], by_token[..., :0]):
        assert torch.equal(rows(laid_out, index), expected[..., : laid_out.shape[3]])
    assert rows(x, index[..., :0]).shape == (2, 3, 0, 4)
    assert rows(x[:, :, :0], index[..., :0]).shape == (2, 3, 0, 4)


def test_the_last_of_more_chosen_slots_than_fit() -> None:
    chosen = torch.tensor([[[True, False, False, False], [True, True, True, False]]])
    assert chosen_slots(chosen, 2).tolist() == [[[3, 0], [1, 2]]]
    assert chosen_slots(chosen, 3).tolist() == [[[2, 3, 0], [0, 1, 2]]]
