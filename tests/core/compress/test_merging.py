"""Layers whose slots are merged together come out as each does alone."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.observations import observe, random_row, same_bits
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import Compressor, LayerWork, compressor
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Observation
from kvfw.core.state.rope import Rope, alike
from kvfw.core.state.state import KVState
from kvfw.errors import RunError
from kvfw.methods.mergers.ewmeans import EWMeans
from kvfw.methods.spaces.pre import Pre

SINKS, RECENT = 2, 3


def bound(text: str) -> Compressor:
    return compressor(parse(text), amount(ratio=2), sinks=SINKS, recent=RECENT)


def layer(index: int, lengths: tuple[int, ...] = (24, 15), rope_base: float | None = None) -> Observation:
    rows = [random_row(length, 10 * index + i) for i, length in enumerate(lengths)]
    seen = observe(rows, sinks=SINKS, recent=RECENT, window=8)
    if rope_base is None:
        return replace(seen, layer=index)
    assert seen.rope is not None
    pairs = len(seen.rope.inv_freq)
    return replace(seen, layer=index, rope=Rope(rope_base ** -(torch.arange(pairs, dtype=torch.float32) / pairs)))


def work() -> list[LayerWork]:
    """Layers that differ in numbers only, in budget, in lengths, in rotation; and one that loses all."""
    two = torch.tensor([[9, 9], [6, 6]])
    return [
        LayerWork(layer(0), two),
        LayerWork(layer(1), two),
        LayerWork(layer(2), torch.tensor([[9, 4], [1, 0]])),
        LayerWork(layer(3, (19, 24)), two),
        LayerWork(layer(4, rope_base=500.0), two),
        LayerWork(layer(5), two),
        LayerWork(layer(6), torch.zeros(2, 2, dtype=torch.int64)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "ewmeans_pre",
        "ewmeans_post(bias=log)",
        "ewmeans_pre(block=8)",
        "snapkv:0.5+ewmeans_pre:0.5",
        "snapkv:0.5+streaming(positions=cache):0.5",
        "h2o:0.6+ewmeans_post:0.4",
    ],
)
def test_several_layers_are_what_each_is_alone_bit_for_bit(text: str) -> None:
    made = bound(text)
    together = made.compress_layers(work())
    for own, state in zip(work(), together, strict=True):
        assert same_bits(state, made.compress(own.obs, own.budget))
    assert made.compress_layers([]) == []


@pytest.fixture
def merged_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of rows of every merge."""
    rows = list[int]()
    merge = EWMeans.merge

    def counted(self: EWMeans, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        rows.append(len(budget))
        return merge(self, state, weights, budget)

    monkeypatch.setattr(EWMeans, "merge", counted)
    return rows


def test_only_neighbours_alike_are_merged_together(merged_rows: list[int]) -> None:
    bound("ewmeans_pre").compress_layers(work())
    # Another budget makes no difference, nor do other lengths where the widest row is as wide.
    assert merged_rows == [8, 2, 2]


@pytest.mark.parametrize("part", [EWMeans, Pre])
def test_without_a_promise_that_rows_stay_apart_layers_are_merged_alone(
    part: type[Part], merged_rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "rows_apart", False)
    bound("ewmeans_pre").compress_layers(work())
    assert merged_rows == [2] * 6
    assert not Part.rows_apart


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        ("slots", r"merger EWMeans returned .* slots where its budget was \[\[9, 9\], \[6, 6\]\], in layer 1$"),
        ("mass", r"merger EWMeans returned slots that stand for .* in layer 1; masses must add up$"),
        ("all", r"merger EWMeans in layers 0 and 1 failed: ValueError: nothing left"),
    ],
)
def test_a_fault_is_told_with_its_layer(lose: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    merge = EWMeans.merge

    def losing(self: EWMeans, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        if lose == "all":
            raise ValueError("nothing left")
        whole = merge(self, state, weights, budget)
        mass = whole.mass.clone()
        mass[3, 0, -1] = 0 if lose == "slots" else 77
        return replace(whole, mass=mass)

    monkeypatch.setattr(EWMeans, "merge", losing)
    with pytest.raises(RunError, match=message):
        bound("ewmeans_pre").compress_layers(work()[:2])


def test_a_layer_merged_with_others_holds_nothing_of_them() -> None:
    for state in bound("ewmeans_pre").compress_layers(work()[:2]):
        for part in (state.keys, state.values, state.positions, state.mass, state.bias):
            assert part.untyped_storage().nbytes() == part.nbytes


def test_rotations_are_alike_where_frequencies_scaling_and_layout_are() -> None:
    rope = Rope(torch.tensor([1.0, 0.1]))
    assert alike(None, None)
    assert not alike(rope, None)
    assert alike(rope, Rope(torch.tensor([1.0, 0.1])))
    assert not alike(rope, Rope(torch.tensor([1.0, 0.2])))
    assert not alike(rope, replace(rope, scaling=2.0))
    assert not alike(rope, replace(rope, layout="interleaved"))
    assert not alike(rope, Rope(torch.tensor([1.0])))
