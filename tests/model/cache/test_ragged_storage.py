"""Heads of unequal size without padding: the same slots, the same answers, no more bytes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.tiny_models import parts, same_bits
from kvfw.core.state.state import KVState
from kvfw.model.cache.padded import PaddedStorage
from kvfw.model.cache.ragged import RaggedStorage
from kvfw.model.cache.storage import Storage
from kvfw.model.cache.stored import read, stored

ROWS, HEADS, DIM = 2, 3, 4
LENGTHS = torch.tensor([[3, 160, 7], [61, 5, 0]])


def state_of(lengths: Tensor, *, biased: bool = False, width: int | None = None) -> KVState:
    """Random slots, as many per head as ``lengths`` say, padded on the left."""
    made = torch.Generator().manual_seed(5)
    width = int(lengths.max()) if width is None else width
    shape = (*lengths.shape, width)
    real = torch.arange(width) >= width - lengths[..., None]
    keys, values = torch.randn(*shape, DIM, generator=made), torch.randn(*shape, DIM + 1, generator=made)
    return KVState(
        keys=keys * real[..., None],
        values=values * real[..., None],
        positions=torch.arange(width).float().expand(shape).masked_fill(~real, -1.0),
        mass=torch.full(shape, 2.0 if biased else 1.0) * real,
        bias=torch.full(shape, 0.5 if biased else 0.0).masked_fill(~real, -torch.inf),
    )


def new_tokens(count: int, seed: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    shape = (rows, HEADS, count)
    return torch.randn(*shape, DIM, generator=made), torch.randn(*shape, DIM + 1, generator=made)


def grow(storage: Storage, count: int, seed: int = 0, real: Tensor | None = None) -> None:
    storage.append(*new_tokens(count, seed, storage.rows))
    positions = (200.0 + seed + torch.arange(count)).expand(storage.rows, count)
    storage.place(positions if real is None else positions.masked_fill(~real, -1.0), real)


def exact_bytes(storage: Storage) -> int:
    """Slots x bytes per slot, of keys and values in float32."""
    state = storage.state()
    return int((state.mass >= 0).sum() if storage.plain else storage.slots().sum()) * (DIM + DIM + 1) * 4


def held_bytes(storage: Storage) -> int:
    return sum(part.untyped_storage().nbytes() for part in storage.kv)


def test_heads_of_unequal_size_are_held_without_padding_and_equal_ones_padded() -> None:
    assert isinstance(stored(state_of(LENGTHS)), RaggedStorage)
    assert isinstance(stored(state_of(torch.tensor([[9, 9, 9], [4, 4, 4]]))), PaddedStorage)


@pytest.mark.parametrize("biased", [False, True])
def test_the_padded_form_is_that_of_the_padded_storage_bit_for_bit(biased: bool) -> None:
    state = state_of(LENGTHS, biased=biased, width=170)
    ragged, padded = RaggedStorage.of(state), PaddedStorage.of(state)
    assert same_bits(ragged.state(), state)
    real = torch.tensor([[False, True], [True, True]])
    with torch.no_grad():
        for step, (count, mask) in enumerate([(1, None), (1, None), (5, None), (2, real), (1, None), (40, None)]):
            for storage in (ragged, padded):
                grow(storage, count, step, mask)
            assert same_bits(ragged.state(), padded.state())
            assert ragged.width == padded.width
            assert torch.equal(ragged.last(), padded.last())
            assert torch.equal(ragged.slots(), padded.slots())
            for name in ("keys", "values"):
                assert torch.equal(getattr(ragged, name), getattr(padded, name))


def test_tokens_without_positions_are_in_the_keys_but_not_in_the_state() -> None:
    for storage in (RaggedStorage.of(state_of(LENGTHS)), PaddedStorage.of(state_of(LENGTHS))):
        before = storage.state()
        with torch.no_grad():
            keys, _ = storage.append(*new_tokens(2, 1))
        assert storage.handed is keys
        assert storage.keys is not None
        assert torch.equal(storage.keys[:, :, -2:], new_tokens(2, 1)[0])
        assert same_bits(storage.state(), before)


@pytest.mark.parametrize("kind", [RaggedStorage, PaddedStorage])
@pytest.mark.parametrize("lengths", [LENGTHS + 400, torch.tensor([[2000, 40, 40]]), LENGTHS])
def test_bytes_stay_within_two_percent(kind: Any, lengths: Tensor) -> None:
    storage = kind.of(state_of(lengths if kind is RaggedStorage else lengths.amax() + 0 * lengths))
    exact = exact_bytes(storage)
    with torch.no_grad():
        for step in range(64):
            grow(storage, 1, step)
            exact = exact_bytes(storage)
            assert exact <= held_bytes(storage) <= 1.02 * exact


@pytest.mark.parametrize("kind", [RaggedStorage, PaddedStorage])
def test_there_is_no_room_before_something_is_appended(kind: Any) -> None:
    storage = kind.of(state_of(LENGTHS if kind is RaggedStorage else 0 * LENGTHS + 160))
    assert held_bytes(storage) == exact_bytes(storage)


@pytest.mark.parametrize("kind", [RaggedStorage, PaddedStorage])
def test_several_tokens_are_written_into_one_buffer(kind: Any) -> None:
    storage = kind.of(state_of(torch.tensor([[1500, 1500, 60 if kind is RaggedStorage else 1500]])))
    places = []
    with torch.no_grad():
        for step in range(40):
            grow(storage, 1, step)
            places.append(storage.kv[0].data_ptr())
    # 2 % of 1020 slots per head and of 1500.
    assert len(set(places)) <= 3


@pytest.mark.parametrize("kind", [RaggedStorage, PaddedStorage])
def test_what_was_handed_out_never_changes(kind: Any) -> None:
    storage = kind.of(state_of(LENGTHS + 400 if kind is RaggedStorage else 0 * LENGTHS + 400))
    with torch.no_grad():
        grow(storage, 1)
        seen = storage.state()
        before = KVState(*(part.clone() for part in seen.parts))
        views = [(head, head.keys.clone()) for head in storage.heads() or ()]
        for step in range(12):
            grow(storage, 1, step)
    assert same_bits(seen, before)
    assert all(torch.equal(head.keys, keys) for head, keys in views)


def with_rows_selected(storage: Storage) -> Storage:
    storage.map_rows(lambda x: x.index_select(0, torch.arange(2)))
    return storage


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": lambda storage: storage.copy(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda storage: pickle.loads(pickle.dumps(storage)),
    "rows": lambda storage: with_rows_selected(storage.copy()),
}


@pytest.mark.parametrize("kind", [RaggedStorage, PaddedStorage])
@pytest.mark.parametrize("how", COPIES)
def test_copies_that_share_a_buffer_do_not_disturb_each_other(kind: Any, how: str) -> None:
    state = state_of(LENGTHS + 400 if kind is RaggedStorage else 0 * LENGTHS + 400)
    padding = torch.tensor([[False], [True]])

    def alone(second: int, real: Tensor | None) -> KVState:
        storage = kind.of(state)
        grow(storage, 1, 0)
        grow(storage, 1, second, real)
        found: KVState = storage.state()
        return found

    with torch.no_grad():
        first = kind.of(state)
        grow(first, 1, 0)
        shared = first.copy()
        grow(first, 1, 7, padding)
        # Copied when the buffer already held a token that is not the copy's.
        second = COPIES[how](shared)
        for storage in (second, shared):
            grow(storage, 1, 8)
        assert same_bits(first.state(), alone(7, padding))
        assert same_bits(second.state(), alone(8, None))
        assert same_bits(shared.state(), alone(8, None))


@pytest.mark.parametrize("kind", [RaggedStorage, PaddedStorage])
@pytest.mark.parametrize("rows", [[1, 0], [1, 1], [0, 0, 1, 1], [1]])
def test_rows_are_selected_with_all_they_hold(kind: Any, rows: list[int]) -> None:
    storage = kind.of(state_of(LENGTHS, biased=True))
    with torch.no_grad():
        grow(storage, 3, 1)
        before = storage.state()
        storage.map_rows(lambda x: x[torch.tensor(rows)])
        for name, part in parts(storage.state()).items():
            assert torch.equal(part, parts(before)[name][rows]), name
        grow(storage, 1, 2)
        assert torch.equal(storage.state().keys[:, :, :-1], before.keys[rows])
    if kind is RaggedStorage:
        assert held_bytes(storage) <= 1.02 * exact_bytes(storage)


@pytest.mark.parametrize("kind", [RaggedStorage, PaddedStorage])
def test_inference_mode_may_begin_and_end_between_tokens(kind: Any) -> None:
    storage, other = (kind.of(state_of(LENGTHS + 300 if kind is RaggedStorage else 0 * LENGTHS + 300)) for _ in "ab")
    for step in range(6):
        with torch.no_grad() if step % 3 else torch.inference_mode():
            grow(storage, 1, step)
        with torch.no_grad():
            grow(other, 1, step)
    assert same_bits(storage.state(), other.state())


@pytest.mark.parametrize("kind", [RaggedStorage, PaddedStorage])
def test_gradients_flow_through_new_tokens_and_are_not_written_over(kind: Any) -> None:
    storage = kind.of(state_of(LENGTHS + 400 if kind is RaggedStorage else 0 * LENGTHS + 400))
    keys, values = new_tokens(1, 1)
    keys.requires_grad_()
    with torch.no_grad():
        grow(storage, 1, 2)  # there is room now
    storage.append(keys, values)
    storage.place(torch.full((ROWS, 1), 200.0), None)
    heads = storage.heads()
    whole = [storage.keys] if heads is None else [head.keys for head in heads]
    loss: Any = torch.stack([part.square().sum() for part in whole]).sum()
    with torch.no_grad():
        grow(storage, 1, 2)
    loss.backward()
    assert keys.grad is not None
    assert torch.equal(keys.grad, 2 * keys)


def test_what_is_written_has_no_padding_and_is_read_again() -> None:
    storage = RaggedStorage.of(state_of(LENGTHS, biased=True, width=163))
    with torch.no_grad():
        grow(storage, 1, 1)
    written = storage.written()
    assert len(written["keys"]) == int(LENGTHS.sum()) + LENGTHS.numel()
    again = read(written)
    assert isinstance(again, RaggedStorage)
    assert same_bits(again.state(), storage.state())


@pytest.mark.parametrize("fault", ["lengths", "width", "positions"])
def test_what_does_not_fit_together_is_refused(fault: str) -> None:
    written = RaggedStorage.of(state_of(LENGTHS)).written()
    broken = {"lengths": LENGTHS + 1, "width": torch.tensor(8), "positions": torch.zeros(3)}
    with pytest.raises(ValueError, match="do not fit"):
        read({**written, fault: broken[fault]})
