"""Every allocator against a slow reference, by hand, and for what holds of all of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from helpers.layer_views import Heads, scored_layer, shape_layers, window_layer
from helpers.observations import SCALE, PromptRow, random_row
from helpers.slow_allocators import (
    maps_of,
    slow_adakv,
    slow_by_weight,
    slow_counts,
    slow_equal_mass,
    slow_held,
    slow_nearby,
    slow_preference,
    slow_tokens_needed,
)
from kvfw.core.compose.build import build_part
from kvfw.core.compose.composition import parse
from kvfw.core.compress.allocation import allocated
from kvfw.core.contracts.parts import Allocator, LayerView
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import default_registry
from kvfw.core.state.observation import Columns
from kvfw.errors import SpecError
from kvfw.methods.allocators.adakv import AdaKV
from kvfw.methods.allocators.cake import Cake
from kvfw.methods.allocators.equalmass import EqualMass
from kvfw.methods.allocators.global_threshold import GlobalThreshold
from kvfw.methods.allocators.pyramid import Pyramid
from kvfw.methods.allocators.simlayer import SimLayer
from kvfw.methods.allocators.uniform import UniformBudgets
from kvfw.methods.allocators.zigzag import ZigZag

LENGTHS = (40, 31)


def budgets(allocator: Allocator, totals: Sequence[int], layers: Sequence[LayerView]) -> list[list[list[int]]]:
    """Per row, layer and head; checked as in a compression."""
    found = allocated(allocator, torch.tensor(list(totals)), layers)
    return [[layer[row].tolist() for layer in found] for row in range(len(totals))]


def prompts(layer: int, lengths: Sequence[int] = LENGTHS) -> list[PromptRow]:
    """Layers differ in how sharply they attend."""
    rows = [random_row(length, 10 * layer + i) for i, length in enumerate(lengths)]
    return [PromptRow(row.keys * (0.5 + layer), row.values, row.queries, row.rare) for row in rows]


# Pyramid and uniform: shapes alone.


def test_pyramid_falls_linearly_from_the_lowest_layer_to_the_highest() -> None:
    found = budgets(Pyramid(beta=500 / 64), [2500], shape_layers([1] * 5, [1000]))
    assert found == [[[936], [718], [500], [282], [64]]]


def test_pyramid_gives_no_layer_more_than_its_middle() -> None:
    assert budgets(Pyramid(beta=20), [300], shape_layers([1] * 3, [120])) == [[[120], [100], [80]]]


def test_pyramid_of_one_layer_is_uniform_and_of_an_empty_row_nothing() -> None:
    assert budgets(Pyramid(), [12, 0], shape_layers([2], [10, 0])) == [[[6, 6]], [[0, 0]]]


def test_pyramid_with_uneven_heads_keeps_its_total_when_the_low_layers_are_full() -> None:
    found = budgets(Pyramid(), [170], shape_layers([1, 1, 8], [20]))[0]
    assert sum(map(sum, found)) == 170
    assert found[0] == found[1] == [20]


def test_uniform_gives_the_same_everywhere() -> None:
    assert budgets(UniformBudgets(), [12, 6], shape_layers([2, 1], [10, 2])) == [[[4, 4], [4]], [[2, 2], [2]]]


# Ada-KV, global and equal mass: scores.


def test_adakv_by_hand() -> None:
    layer = scored_layer(0, [[(0.6, 0.3, 0.1), (0.35, 0.33, 0.32)]])
    assert budgets(AdaKV(floor=0), [4], [layer]) == [[[1, 3]]]
    assert budgets(AdaKV(floor=1), [4], [layer]) == [[[2, 2]]]
    # (1 - 0.5) * (1, 3) + 0.5 * (2, 2) = (1.5, 2.5): the slot that rounding leaves goes to the first.
    assert budgets(AdaKV(floor=0.5), [4], [layer]) == [[[2, 2]]]


def test_adakv_can_compare_scores_without_a_common_unit() -> None:
    layer = scored_layer(0, [[(60, 30, 10), (0.35, 0.33, 0.32)]])
    assert budgets(AdaKV(floor=0), [4], [layer]) == [[[3, 1]]]
    # Divided by the sums of the two highest: (.67, .33, .11) and (.51, .49, .47).
    assert budgets(AdaKV(floor=0, normalise="share"), [4], [layer]) == [[[1, 3]]]
    # (1.30, -.16, -1.14) and (1.34, -.27, -1.07)
    assert budgets(AdaKV(floor=0, normalise="zscore"), [3], [layer]) == [[[2, 1]]]


def test_adakv_meets_its_total_where_heads_hold_less_than_the_floor() -> None:
    # As while decoding: three heads were cut to a token each.
    layer = scored_layer(0, [[range(1, 41)] * 4])
    assert layer.obs is not None
    rank = layer.obs.state.valid.to(torch.int64).cumsum(-1).flip(-1)
    small = torch.tensor([True, True, True, False])[None, :, None]
    layer.obs.protected.logical_or_(small & (rank != 1))
    assert budgets(AdaKV(floor=0.9), [40], [layer]) == [[[1, 1, 1, 37]]]


def test_global_by_hand() -> None:
    layers = [scored_layer(3, [[(9, 1, 5), (2, 3, 4)]]), scored_layer(7, [[(8, 7, 6), (0, 0, 0)]])]
    assert budgets(GlobalThreshold(), [5], layers) == [[[2, 0], [3, 0]]]
    assert budgets(GlobalThreshold(), [11], layers) == [[[3, 3], [3, 2]]]


def test_equal_mass_by_hand() -> None:
    layers = [scored_layer(0, [[(7, 2, 1)]]), scored_layer(1, [[(4, 3, 3)]])]
    by_total = {total: budgets(EqualMass(), [total], layers)[0] for total in (0, 3, 4, 5, 6)}
    assert by_total == {0: [[0], [0]], 3: [[1], [2]], 4: [[2], [2]], 5: [[2], [3]], 6: [[3], [3]]}


def test_equal_mass_gives_the_heads_of_a_layer_the_same() -> None:
    layers = [scored_layer(0, [[(7, 2, 1), (1, 7, 2)]]), scored_layer(1, [[(1, 1, 1), (1, 1, 1)]])]
    # Averaged over heads the first layer's scores are 4.5, 4 and 1.5; each head by itself holds 0.7 in its highest.
    assert budgets(EqualMass(), [6], layers) == [[[1, 1], [2, 2]]]
    assert budgets(EqualMass(), [10], layers) == [[[2, 2], [3, 3]]]
    assert budgets(EqualMass(heads="each"), [8], layers) == [[[1, 1], [3, 3]]]
    assert budgets(EqualMass(), [7], layers) == [[[2, 1], [2, 2]]]


scores = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 6), min_size=width, max_size=width), min_size=2, max_size=2)
)
#: Two layers of two heads; a row of a batch has its own length.
batches = st.lists(
    st.tuples(scores, scores)
    .map(lambda p: (p[0], [head[: len(p[0][0])] for head in p[1]]))
    .filter(lambda p: len(p[0][0]) == len(p[1][0])),
    min_size=1,
    max_size=3,
)
Batch = list[tuple[list[list[int]], list[list[int]]]]


@given(batches, st.data())
def test_scored_allocators_are_their_slow_references_row_by_row(batch: Batch, data: st.DataObject) -> None:
    layers = [scored_layer(i, [row[i] for row in batch]) for i in range(2)]
    each = [data.draw(st.integers(0, len(row[0][0]))) for row in batch]
    totals = [4 * n for n in each]
    found = budgets(GlobalThreshold(), totals, layers)
    slow = [slow_counts([*low, *high], total) for (low, high), total in zip(batch, totals, strict=True)]
    assert found == [[row[:2], row[2:]] for row in slow]
    for mode in ("mean", "each"):
        found = budgets(EqualMass(heads=mode), totals, layers)
        assert [list(map(sum, row)) for row in found] == [
            list(map(sum, slow_equal_mass(row, total, mode == "each")))
            for row, total in zip(batch, totals, strict=True)
        ]
        for row, given_ in zip(batch, found, strict=True):
            check_one_threshold([slow_held(heads, mode == "each") for heads in row], given_)
    for floor in (Fraction(0), Fraction(1, 5), Fraction(1)):
        found = budgets(AdaKV(floor=float(floor)), [2 * n for n in each], layers[:1])
        assert found == [[slow_adakv(row[0], 2 * n, floor)] for row, n in zip(batch, each, strict=True)]


def check_one_threshold(held: Sequence[Sequence[Fraction]], given_: Sequence[Sequence[int]]) -> None:
    """What a layer held before its last slot is no more than what any other with room holds now."""
    before = [held[i][max(heads) - 1] for i, heads in enumerate(given_) if max(heads) > 0]
    now = [held[i][min(heads)] for i, heads in enumerate(given_) if min(heads) < len(held[i]) - 1]
    assert not before or not now or max(before) <= min(now)


def test_a_layer_without_any_score_is_not_filled_first() -> None:
    layers = [scored_layer(0, [[(0, 0, 0, 0)]]), scored_layer(1, [[(1, 1, 1, 1)]])]
    assert budgets(EqualMass(), [4], layers) == [[[2], [2]]]


# CAKE, ZigZagKV and SimLayerKV: the last queries.


@pytest.mark.parametrize(("tau1", "tau2"), [(1, 1), (1.5, 0.4)])
def test_cake_is_its_slow_reference(tau1: float, tau2: float) -> None:
    window, layers = 8, 3
    views = [window_layer(i, prompts(i), window) for i in range(layers)]
    totals = [11 * 2 * layers, 7 * 2 * layers]
    found = budgets(Cake(window=window, tau1=tau1, tau2=tau2), totals, views)
    for row, total in enumerate(totals):
        maps = [maps_of(p.queries, p.keys, SCALE, window) for p in (prompts(i)[row] for i in range(layers))]
        weights = [Fraction(slow_preference(each, tau1, tau2)) for each in maps for _ in range(2)]
        slow = slow_by_weight(weights, total, [int(views[0].middle[row])] * 2 * layers)
        assert found[row] == [slow[2 * i : 2 * i + 2] for i in range(layers)]
        assert len({*map(tuple, found[row])}) > 1


def test_cake_of_a_prompt_no_longer_than_its_window_is_uniform() -> None:
    views = [window_layer(i, prompts(i, [30, 14]), 16) for i in range(2)]
    assert budgets(Cake(window=16), [20, 12], views)[1] == [[3, 3], [3, 3]]


def test_cake_with_tiny_temperatures_still_divides() -> None:
    views = [window_layer(i, prompts(i), 8) for i in range(3)]
    found = budgets(Cake(window=8, tau1=0.01, tau2=0.001), [30, 18], views)
    assert [sum(map(sum, row)) for row in found] == [30, 18]


@pytest.mark.parametrize(("mass", "minimum"), [(0.9, 0.2), (0.5, 0), (1, 0.5)])
def test_zigzag_is_its_slow_reference(mass: float, minimum: float) -> None:
    window, layers = 8, 3
    views = [window_layer(i, prompts(i), window) for i in range(layers)]
    totals = [11 * 2 * layers, 7 * 2 * layers]
    found = budgets(ZigZag(mass=mass, minimum=minimum, window=window), totals, views)
    for row, total in enumerate(totals):
        maps = [maps_of(p.queries, p.keys, SCALE, window) for p in (prompts(i)[row] for i in range(layers))]
        # At mass 1 a rounding error of the sum must not ask for one token more than there is.
        weights = [Fraction(slow_tokens_needed(each, min(mass, 1 - 1e-6))) for each in maps for _ in range(2)]
        least = [Fraction(minimum) * total / (2 * layers)] * (2 * layers)
        slow = slow_by_weight(weights, total, [int(views[0].middle[row])] * 2 * layers, least)
        assert found[row] == [slow[2 * i : 2 * i + 2] for i in range(layers)]


def test_zigzag_by_hand() -> None:
    # Keys of 0: attention is even, so the fraction p takes ceil(p n) of n tokens in every layer.
    row = random_row(20, 0)
    even = PromptRow(row.keys * 0, row.values, row.queries, row.rare)
    sharp = PromptRow(row.keys * 1000, row.values, row.queries, row.rare)
    layers = [window_layer(0, [even], 1), window_layer(1, [sharp], 1)]
    # 10 tokens against 1: (0.5 * 11) + 22 * 0.5 * (10, 1) / 11 = 15.5 and 6.5 per two heads.
    found = budgets(ZigZag(mass=0.5, minimum=0.5, window=1), [22], layers)
    assert [sum(layer) for layer in found[0]] == [16, 6]


def test_simlayer_cuts_lazy_layers_to_their_first_and_last_tokens() -> None:
    first, recent, window = 3, 8, 2
    views = [window_layer(i, prompts(i), window) for i in range(4)]
    shares = [
        [slow_nearby(maps_of(p.queries, p.keys, SCALE, window), first, recent) for p in prompts(i)] for i in range(4)
    ]
    threshold = 0.3
    lazy = [[share[row] > threshold for share in shares] for row in range(2)]
    assert any(map(any, lazy)), shares
    assert not all(map(all, lazy)), shares
    middles = [length - 5 for length in LENGTHS]
    allocator = SimLayer(threshold=threshold, first=first, recent=recent, window=window)
    found = budgets(allocator, [8 * middle for middle in middles], views)
    for row, middle in enumerate(middles):
        # Of 3 + 8 tokens 2 + 3 are kept anyway.
        assert found[row] == [[6, 6] if each else [middle, middle] for each in lazy[row]]


def test_simlayer_gives_what_lazy_layers_leave_to_the_others() -> None:
    row = random_row(40, 0)
    lazy = PromptRow(row.keys * 0, row.values, row.queries, row.rare)  # every token gets 1/40
    early = random_row(40, 0).keys.clone()
    early[:, 10] = row.queries[::2, -1] * 1000
    busy = PromptRow(early, row.values, row.queries, row.rare)
    views = [window_layer(0, [lazy], 1), window_layer(1, [busy], 1)]
    allocator = SimLayer(threshold=0.6, first=0, recent=8, window=1)
    assert budgets(allocator, [40], views) == [[[10, 10], [10, 10]]]
    assert budgets(SimLayer(threshold=0.15, first=0, recent=8), [40], views) == [[[5, 5], [15, 15]]]
    # No more than its equal share, and all lazy: less than the total.
    assert budgets(SimLayer(threshold=0.15, first=0, recent=8), [12], views) == [[[3, 3], [3, 3]]]
    assert budgets(SimLayer(threshold=0, first=0, recent=5), [40], views[:1] * 2) == [[[2, 2], [2, 2]]]
    assert budgets(SimLayer(threshold=0.05, first=0, recent=3), [140], views) == [[[0, 0], [35, 35]]]


# What holds of all of them.


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "heads.json"
    path.write_text(json.dumps({"layers": [[3, 1], [0, "streaming"], ["full", 2]]}))
    return path


OPTIONS = {
    "table": ["file={table}", "file={table},floor=0.3"],
    "adakv": ["floor=0.2", "normalise=share", "normalise=zscore"],
    "equalmass": ["heads=mean", "heads=each"],
    "simlayer": ["recent=8,threshold=0.28", ""],
    "cake": ["window=6"],
    "zigzag": ["window=6"],
}
TEXTS = [
    f"{spec.name}({options})" if options else spec.name
    for spec in default_registry().of_kind(Kind.ALLOCATOR)
    for options in OPTIONS.get(spec.name, [""])
]


def built(text: str, table: Path) -> Allocator:
    allocator: object = build_part(Kind.ALLOCATOR, text.format(table=table)).value
    assert isinstance(allocator, Allocator)
    return allocator


def views_of(allocator: Allocator, rows: Sequence[int]) -> list[LayerView]:
    """Three layers that show everything: scores are the first coordinates of the keys, made attention-like."""
    count = 1 if getattr(allocator, "scope", "shape") == "layer" else 3
    found = []
    for i in range(count):
        shown = window_layer(i, [prompts(i)[row] for row in rows], 6)
        ranking = scored_layer(i, [[(0.0,)]]).ranking
        assert shown.obs is not None
        # What duo looks at: attention from afar.
        far = {Columns(128): shown.obs.state.keys[..., 0].float().abs()}
        found.append(LayerView(i, 2, shown.middle, replace(shown.obs, columns=far), ranking))
    return found


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("each", [0, 1, 7, 20, 26])
def test_totals_are_exact_and_a_rows_budgets_are_its_own(text: str, each: int, table: Path) -> None:
    allocator = built(text, table)
    layers = views_of(allocator, [0, 1])
    totals = [2 * len(layers) * (each + 3), 2 * len(layers) * each]
    together = budgets(allocator, totals, layers)
    for row, total in enumerate(totals):
        assert budgets(allocator, [total], views_of(allocator, [row])) == [together[row]]
        spent = sum(map(sum, together[row]))
        assert spent == total if getattr(allocator, "exact", True) else spent <= total


@pytest.mark.parametrize("text", TEXTS)
def test_a_whole_middle_is_given_whole(text: str, table: Path) -> None:
    allocator = built(text, table)
    layers = views_of(allocator, [0, 1])
    middles = layers[0].middle.tolist()
    found = budgets(allocator, [2 * len(layers) * middle for middle in middles], layers)
    if getattr(allocator, "exact", True):
        assert found == [[[middle, middle]] * len(layers) for middle in middles]


@pytest.mark.parametrize("text", [text for text in TEXTS if "table" not in text])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(seed=st.integers(0, 1000), each=st.integers(0, 9))
def test_which_token_has_a_score_does_not_matter(text: str, table: Path, seed: int, each: int) -> None:
    allocator = built(text, table)
    if not getattr(allocator, "ranks", True):
        return
    generator = torch.Generator().manual_seed(seed)
    count = 1 if getattr(allocator, "scope", "shape") == "layer" else 3
    values = torch.randint(0, 9, (count, 2, 9), generator=generator).tolist()
    order = torch.randperm(9, generator=generator).tolist()
    shuffled = [[[head[i] for i in order] for head in heads] for heads in values]
    totals = [2 * count * each]

    def of(scores: Sequence[Heads]) -> list[list[list[int]]]:
        return budgets(allocator, totals, [scored_layer(i, [heads]) for i, heads in enumerate(scores)])

    assert of(values) == of(shuffled)


# How they are written.


@pytest.mark.parametrize("text", ["cake", "zigzag", "simlayer", "pyramid", "uniform"])
def test_allocators_that_rank_no_tokens_go_with_any_stage(text: str) -> None:
    assert str(parse(f"streaming@{text}")) == f"streaming@{text}"


@pytest.mark.parametrize("text", ["adakv", "global", "equalmass", "composite"])
def test_allocators_that_compare_scores_refuse_scores_without_a_common_unit(text: str) -> None:
    with pytest.raises(SpecError, match=f"{text} compares scores of different heads, and those of Position have no"):
        parse(f"streaming@{text}")
    assert str(parse(f"streaming@{text}(by=snapkv)")) == f"streaming@{text}(by=snapkv)"
