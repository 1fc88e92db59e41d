"""kivi, turbo and think against their formulas, number by number."""

import math

import numpy as np
import pytest
import torch

from helpers.coded_by_loops import kivi
from kvfw.core.compress.coding import decoded, encoded
from kvfw.core.contracts.codec import Codec, CodedHeads, PlainHeads
from kvfw.core.ops.minmax import dequantised, quantised
from kvfw.core.ops.packing import halved, packed, unpacked
from kvfw.core.ops.sphere import rotation, sphere_codebook
from kvfw.core.state.state import exact_state
from kvfw.errors import RunError
from kvfw.methods.codecs.kivi import Kivi
from kvfw.methods.codecs.think import Think
from kvfw.methods.codecs.turbo import Turbo

R, L, DIM = 2, 24, 16


def plain(queries: int = 0, seed: int = 0) -> PlainHeads:
    """Heads of random numbers, of which the queries' second half is real."""
    made = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, R, L, DIM, generator=made) * 3
    found = PlainHeads(keys, values, layer=3)
    if not queries:
        return found
    asked = torch.randn(R, 2, queries, DIM, generator=made)
    return PlainHeads(keys, values, 3, asked, (torch.arange(queries) >= queries // 2).expand(R, -1))


def held(codec: Codec, heads: PlainHeads) -> CodedHeads:
    return encoded(codec, heads)


def test_two_bits_of_four_numbers() -> None:
    codes = quantised(torch.tensor([[0.0, 0.4, 1.0, 3.0]]), 2)
    assert unpacked(codes.codes, 2, 4).tolist() == [[0, 0, 1, 3]]
    assert codes.codes.tolist() == [[0 + (0 << 2) + (1 << 4) + (3 << 6)]]
    assert dequantised(codes, 2, 4).tolist() == [[0, 0, 1, 3]]
    # A group of equal numbers has no range.
    assert dequantised(quantised(torch.full((1, 5), -1.5), 4), 4, 5).tolist() == [[-1.5] * 5]


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 8, 13])
def test_codes_of_any_width_are_packed_without_gaps(bits: int, count: int) -> None:
    codes = torch.randint(0, 2**bits, (3, count), generator=torch.Generator().manual_seed(bits)).to(torch.uint8)
    data = packed(codes, bits)
    assert torch.equal(unpacked(data, bits, count), codes)
    if count == 8:
        assert data.shape == (3, bits)


def test_a_scale_beyond_float16_is_an_error() -> None:
    with pytest.raises(RunError, match=r"numbers up to 1e\+05 cannot be scaled by float16, which ends at 65504"):
        halved(torch.tensor([1.0, -1e5]))


@pytest.mark.parametrize("codec", [Kivi(group=8, residual=0), Kivi(bits=4, group=8, residual=0), Kivi(group=3)])
def test_kivi(codec: Kivi) -> None:
    """Keys by channel over tokens, values by token over channels; 3 divides no value, so that it is one group."""
    heads = plain()
    positions = torch.arange(float(L))[None]
    state = exact_state(heads.keys[None], heads.values[None], positions, torch.ones(1, L, dtype=torch.bool))
    expected = kivi(state, codec, last=L)
    keys, values = decoded(codec, held(codec, heads))
    assert torch.allclose(keys, expected.keys[0], atol=1e-5)
    assert torch.allclose(values, expected.values[0], atol=1e-5)


def test_kivis_bytes_are_those_of_codes_scales_and_minima() -> None:
    tensors = held(Kivi(bits=4, group=8), plain()).tensors
    groups = R * L * DIM // 8
    assert sum(part.nbytes for part in tensors.values()) == 2 * groups * (8 * 4 // 8 + 2 + 2)
    keys, values = torch.randn(2, R, 64, 64)
    large = PlainHeads(keys, values, layer=0)
    coded = sum(part.nbytes for part in held(Kivi(bits=4), large).tensors.values())
    assert coded / (2 * R * 64 * 64 * 4) <= 0.16
    assert coded / (2 * R * 64 * 64 * 2) <= 0.32


@pytest.mark.parametrize(
    ("bits", "numbers", "error"),
    [
        (1, [0.7979], 0.3634),
        (2, [0.4528, 1.510], 0.1175),
        (3, [0.2451, 0.7560, 1.344, 2.152], 0.03454),
        (4, [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733], 0.009497),
    ],
)
def test_the_codebook_of_many_dimensions_is_that_of_the_normal_distribution(
    bits: int, numbers: list[float], error: float
) -> None:
    """Max 1960, table I."""
    dim = 4096
    codes = sphere_codebook(dim, bits)
    assert torch.allclose(codes[2 ** (bits - 1) :] * math.sqrt(dim), torch.tensor(numbers), atol=3e-3)
    points = torch.randn(200, dim, generator=torch.Generator().manual_seed(0))
    points = points / points.norm(dim=-1, keepdim=True)
    nearest = (points[..., None] - codes).abs().amin(-1)
    assert float(nearest.square().sum(-1).mean()) == pytest.approx(error, rel=0.02)


def test_turbo() -> None:
    codec, heads = Turbo(bits=3, seed=5), plain()
    turn, codes = rotation(DIM, (5 << 16) + 3).double().numpy(), sphere_codebook(DIM, 3).double().numpy()
    assert np.allclose(turn @ turn.T, np.eye(DIM), atol=1e-6)
    for x, read in zip((heads.keys, heads.values), decoded(codec, held(codec, heads)), strict=True):
        for head in range(R):
            for slot in range(L):
                vector = x[head, slot].double().numpy()
                norm = float(np.float16(np.linalg.norm(vector)))
                coordinates = [float(turn[i] @ vector) / np.linalg.norm(vector) for i in range(DIM)]
                nearest = np.array([codes[np.abs(codes - one).argmin()] for one in coordinates])
                assert np.allclose(read[head, slot].numpy(), norm * (turn.T @ nearest), atol=1e-4)
    coded = held(codec, heads)
    assert sum(part.nbytes for part in coded.tensors.values()) == 2 * R * L * (DIM * 3 // 8 + 2)


def test_turbos_rotations_differ_between_layers_and_seeds_and_leave_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    turns = [Turbo(seed=seed)._rotation(layer, 7) for seed, layer in ((0, 0), (0, 1), (1, 0))]
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.equal(turns[0], turns[1])
    assert not torch.equal(turns[0], turns[2])
    # A vector of zeros has no direction.
    nothing = PlainHeads(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), layer=0)
    assert not any(bool(part.any()) for part in decoded(Turbo(), held(Turbo(), nothing)))


def test_think() -> None:
    """Drops floor(0.4 * 16) = 6 channels of every head, and what it reads of them is 0."""
    codec, heads = Think(window=8), plain(queries=8)
    assert heads.queries is not None
    coded = held(codec, heads)
    keys, values = decoded(codec, coded)
    assert coded.tensors["keys"].shape == (R, L, 10)
    assert torch.equal(values, heads.values)
    for head in range(R):
        energy = []
        for channel in range(DIM):
            looks = [float(heads.queries[head, g, q, channel]) ** 2 for g in range(2) for q in range(4, 8)]
            size = [float(heads.keys[head, slot, channel]) ** 2 for slot in range(L)]
            energy.append(sum(looks) / len(looks) * sum(size) / len(size))
        dropped = sorted(range(DIM), key=lambda channel: energy[channel])[:6]
        expected = heads.keys[head].clone()
        expected[:, dropped] = 0
        assert torch.equal(keys[head], expected)


def test_think_needs_to_know_the_queries() -> None:
    with pytest.raises(RunError, match="think looks at the last queries, and none are known here"):
        held(Think(), plain())
