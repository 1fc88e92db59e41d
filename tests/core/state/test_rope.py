"""Rotation by computed angles: against complex numbers, and its laws as a group."""

from typing import Literal

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from jaxtyping import TypeCheckError
from torch import Tensor

from helpers.slow import slow_rotate
from kvfw.core.state.rope import Rope, rotate, unrotate

Layout = Literal["half", "interleaved"]
DIM = 8


@st.composite
def ropes(draw: st.DrawFn) -> Rope:
    pairs = draw(st.integers(1, DIM // 2))
    base = draw(st.sampled_from([10.0, 10_000.0]))
    return Rope(
        inv_freq=torch.tensor([base ** (-i / pairs) for i in range(pairs)]),
        scaling=draw(st.sampled_from([1.0, 0.7, 1.3])),
        layout=draw(st.sampled_from(["half", "interleaved"])),
    )


positions = st.floats(0, 4096, width=32) | st.integers(0, 4096).map(float)


def vector(seed: int) -> Tensor:
    return torch.randn(1, 1, 1, DIM, generator=torch.Generator().manual_seed(seed))


def at(position: float) -> Tensor:
    return torch.tensor([[[position]]])


@settings(deadline=None, max_examples=40)
@given(ropes(), positions, st.integers(0, 999))
def test_unrotate_undoes_rotate(rope: Rope, position: float, seed: int) -> None:
    key = vector(seed)
    there = rotate(key, at(position), rope)
    torch.testing.assert_close(unrotate(there, at(position), rope), key, rtol=0, atol=2e-6)
    torch.testing.assert_close(rotate(unrotate(key, at(position), rope), at(position), rope), key, rtol=0, atol=2e-6)


@settings(deadline=None, max_examples=40)
@given(ropes(), st.floats(0, 64, width=32), st.integers(0, 999))
def test_rotation_is_that_of_complex_numbers(rope: Rope, position: float, seed: int) -> None:
    key = vector(seed)
    inv_freq = rope.inv_freq.tolist()
    slow = slow_rotate(key.flatten().tolist(), position, inv_freq, rope.scaling, rope.layout)
    # The angle itself is a float32, so it is off by up to 64 * 6e-8.
    torch.testing.assert_close(rotate(key, at(position), rope).flatten(), torch.tensor(slow), rtol=0, atol=5e-5)


@settings(deadline=None, max_examples=40)
@given(ropes(), st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 999))
def test_rotations_add_up(rope: Rope, p: int, q: int, seed: int) -> None:
    plain = Rope(rope.inv_freq, 1.0, rope.layout)
    key = vector(seed)
    twice = rotate(rotate(key, at(float(p)), plain), at(float(q)), plain)
    torch.testing.assert_close(twice, rotate(key, at(float(p + q)), plain), rtol=0, atol=1e-3)


@settings(deadline=None, max_examples=40)
@given(ropes(), positions, st.integers(0, 999))
def test_only_the_rotary_slice_turns_and_is_scaled(rope: Rope, position: float, seed: int) -> None:
    key = vector(seed)
    there = rotate(key, at(position), rope)
    width = rope.rotary_dim
    assert torch.equal(there[..., width:], key[..., width:])
    lengths = there[..., :width].norm(), rope.scaling * key[..., :width].norm()
    torch.testing.assert_close(*lengths, rtol=1e-5, atol=0)


@settings(deadline=None, max_examples=40)
@given(ropes(), st.integers(0, 999))
def test_position_zero_changes_nothing_but_scale(rope: Rope, seed: int) -> None:
    plain = Rope(rope.inv_freq, 1.0, rope.layout)
    assert torch.equal(rotate(vector(seed), at(0.0), plain), vector(seed))


def test_scaling_is_divided_out_once() -> None:
    rope = Rope(torch.tensor([1.0, 0.1]), scaling=2.0)
    key = torch.ones(1, 1, 1, 4)
    assert rotate(key, at(0.0), rope).tolist() == [[[[2.0] * 4]]]
    assert unrotate(key, at(0.0), rope).tolist() == [[[[0.5] * 4]]]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_layouts_pair_other_coordinates(layout: Layout) -> None:
    # A quarter turn of the first pair only.
    rope = Rope(torch.tensor([torch.pi / 2, 0.0]), layout=layout)
    turned = rotate(torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), at(1.0), rope).round(decimals=5)
    wanted = [-3.0, 2.0, 1.0, 4.0] if layout == "half" else [-2.0, 1.0, 3.0, 4.0]
    assert turned.flatten().tolist() == wanted


def test_every_head_turns_at_its_own_positions() -> None:
    rope = Rope(torch.tensor([1.0, 0.3]))
    keys = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    where = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(1)) * 100
    together = rotate(keys, where, rope)
    for row in range(2):
        for head in range(3):
            for i in range(4):
                alone = rotate(keys[row, head, i].view(1, 1, 1, 5), where[row, head, i].view(1, 1, 1), rope)
                torch.testing.assert_close(together[row, head, i], alone.flatten(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keys_are_turned_in_float32(dtype: torch.dtype) -> None:
    rope = Rope(torch.tensor([1.0, 0.1, 0.01, 0.001]))
    key = vector(0).to(dtype)
    there = rotate(key, at(777.0), rope)
    assert there.dtype == torch.float32
    torch.testing.assert_close(unrotate(there, at(777.0), rope), key.float(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("position", [2049, 4097, 30_001])
def test_late_positions_do_not_collapse(position: int) -> None:
    """In bfloat16 (and from 2049 on in float16) neighbours share one number, and keys would lose their place."""
    for half in (torch.float16, torch.bfloat16):
        assert float(torch.tensor(float(position)).to(half)) != position
    rope = Rope(torch.tensor([1.0, 0.01]))
    key = vector(0)[..., :4]
    here, before = rotate(key, at(float(position)), rope), rotate(key, at(position - 1.0), rope)
    one_step = rotate(unrotate(here, at(1.0), rope), at(0.0), rope)
    torch.testing.assert_close(one_step, before, rtol=0, atol=1e-4)
    assert not torch.allclose(here, before, atol=1e-2)


def test_shapes_are_checked_while_tests_run() -> None:
    rope = Rope(torch.ones(2))
    keys = torch.randn(1, 2, 3, 4)
    with pytest.raises(TypeCheckError):
        rotate(keys, torch.zeros(1, 3), rope)  # one position per row: every head needs its own
    with pytest.raises(TypeCheckError):
        rotate(keys, torch.zeros(1, 2, 4), rope)
    with pytest.raises(TypeCheckError):
        rotate(keys, torch.zeros(1, 2, 3, dtype=torch.float16), rope)
