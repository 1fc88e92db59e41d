"""The space undoes RoPE where it turns slowly, leaves it where it turns fast, and comes back."""

import pytest
import torch
from kvfw_segments.space import Slow

from kvfw import KVState, Rope, exact_state, rotate, unrotate

#: Wavelengths of about 6, 63 and 628 tokens.
INV_FREQ = torch.tensor([1.0, 0.1, 0.01])


def rotated(rope: Rope) -> KVState:
    raw = torch.randn(1, 2, 40, 8, generator=torch.Generator().manual_seed(5))
    positions = torch.arange(40.0)[None]
    keys = rotate(raw, positions[:, None].expand(1, 2, 40), rope)
    return exact_state(keys, raw, positions, torch.ones(1, 40, dtype=torch.bool))


@pytest.mark.parametrize("rope", [Rope(INV_FREQ), Rope(INV_FREQ, 1.25), Rope(INV_FREQ, 1.25, "interleaved")])
def test_it_comes_back(rope: Rope) -> None:
    state = rotated(rope)
    space = Slow(wavelength=100)
    back = space.inverse(space.forward(state, rope), rope)
    torch.testing.assert_close(back.keys, state.keys)
    assert back.positions is state.positions
    assert back.values is state.values


def test_only_slow_pairs_are_undone() -> None:
    rope = Rope(INV_FREQ)
    state = rotated(rope)
    inside = Slow(wavelength=100).forward(state, rope).keys
    undone = unrotate(state.keys, state.positions, rope)
    # In the half layout pair i is coordinates i and i + 3; 6 and 7 never turn.
    torch.testing.assert_close(inside[..., [2, 5, 6, 7]], undone[..., [2, 5, 6, 7]])
    assert torch.equal(inside[..., [0, 1, 3, 4]], state.keys[..., [0, 1, 3, 4]])


def test_its_ends_are_pre_and_post() -> None:
    rope = Rope(INV_FREQ)
    state = rotated(rope)
    assert torch.equal(Slow(wavelength=0).forward(state, rope).keys, unrotate(state.keys, state.positions, rope))
    assert torch.equal(Slow(wavelength=1e9).forward(state, rope).keys, state.keys)


def test_a_layer_without_rope_is_left_alone() -> None:
    state = rotated(Rope(INV_FREQ))
    assert Slow().forward(state, None) is state
    assert Slow().inverse(state, None) is state
