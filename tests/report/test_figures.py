"""Figures: sizes, fonts, colours, and that nothing lies on anything else or outside the page."""

import io
import re
from collections.abc import Sequence

import matplotlib as mpl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import image
from matplotlib.text import Text

from helpers.founding_example import TABLE, founding
from helpers.report_examples import METRICS, record
from kvfw.analysis.results import summarise
from kvfw.core.contracts.records import TrialRecord
from kvfw.report.canvas import DOUBLE_IN, SINGLE_IN, Drawing, drawing_style, printable, width_of, wrapped
from kvfw.report.dodge import STEP_IN, apart, side_by_side, spread
from kvfw.report.heatmap import heat_maps
from kvfw.report.looks import FULL_LOOK, PALETTE, looks
from kvfw.report.scatter import scatter_plots


def drawn(records: Sequence[TrialRecord]) -> list[Drawing]:
    results = summarise(records, {}, METRICS, resamples=30)
    return [*scatter_plots(results), *heat_maps(results, records)]


@pytest.fixture(scope="module")
def founding_drawings() -> dict[str, Drawing]:
    return {drawing.name: drawing for drawing in drawn(founding())}


def texts(drawing: Drawing) -> list[Text]:
    found = drawing.figure.findobj(Text)
    return [text for text in found if isinstance(text, Text) and text.get_visible() and text.get_text().strip()]


def check_page(drawing: Drawing) -> None:
    """Every text is at least 7 pt, inside the page, and lies on no other text."""
    with drawing_style():
        drawing.figure.canvas.draw()
        renderer = drawing.figure.canvas.get_renderer()  # type: ignore[attr-defined]
        hidden = hidden_labels(drawing)
        boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts(drawing) if text not in hidden]
    width, height = drawing.figure.get_size_inches() * drawing.figure.dpi
    for text in texts(drawing):
        assert float(text.get_fontsize()) >= 7
    for name, box in boxes:
        assert box.x0 >= -0.5, name
        assert box.y0 >= -0.5, name
        assert box.x1 <= width + 0.5, name
        assert box.y1 <= height + 0.5, name
    for at, (name, box) in enumerate(boxes):
        for other_name, other in boxes[at + 1 :]:
            across = min(box.x1, other.x1) - max(box.x0, other.x0)
            up = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert min(across, up) < 1.5, (name, other_name)


def hidden_labels(drawing: Drawing) -> set[Text]:
    """Labels of ticks outside the limits are never drawn."""
    hidden: set[Text] = set()
    for axes in drawing.figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(limits)
            outside = (tick for tick in axis.get_major_ticks() if not low <= float(tick.get_loc()) <= high)
            hidden.update(label for tick in outside for label in (tick.label1, tick.label2))
    return hidden


def test_the_founding_figures_are_sized_for_a_paper(founding_drawings: dict[str, Drawing]) -> None:
    widths = {name: drawing.figure.get_figwidth() for name, drawing in founding_drawings.items()}
    assert widths == pytest.approx({"pareto": DOUBLE_IN, "retained": SINGLE_IN, "heatmap": DOUBLE_IN}, abs=0.05)
    assert all(drawing.figure.get_figheight() <= 9 for drawing in founding_drawings.values())


@pytest.mark.parametrize("name", ["pareto", "retained", "heatmap"])
def test_no_text_is_small_outside_or_on_another(founding_drawings: dict[str, Drawing], name: str) -> None:
    check_page(founding_drawings[name])


def test_heat_maps_print_their_numbers(founding_drawings: dict[str, Drawing]) -> None:
    shown = [text.get_text() for text in texts(founding_drawings["heatmap"])]
    cells = 17 * 3 * 5
    assert sum(text in ("0", "33", "67", "100") for text in shown) == cells
    assert "Trials per cell: 3." in founding_drawings["heatmap"].caption


def test_files_are_what_they_should_be_and_repeat(founding_drawings: dict[str, Drawing]) -> None:
    drawing = founding_drawings["retained"]
    png = image.imread(io.BytesIO(drawing.save("png")))
    assert png.shape[1] == round(SINGLE_IN * 300)
    assert drawing.save("pdf").startswith(b"%PDF")
    svg = drawing.save("svg").decode()
    assert svg == drawing.save("svg").decode()
    # Names of namespaces and licences are no loads.
    assert not re.search(r"(?:href|src)=[\"'](?!#)", svg)
    assert "<script" not in svg


def test_the_users_own_settings_stay_and_do_not_matter() -> None:
    few = [
        record("full", "ratio=1", metrics={"recall": 1.0, "kv_mb": 2.0}),
        record(metrics={"recall": 0.0, "kv_mb": 1.0}),
    ]
    plain = drawn(few)[0].save("svg")
    with mpl.rc_context({"font.size": 30, "text.parse_math": True, "axes.grid": True}):
        assert drawn(few)[0].save("svg") == plain
        assert mpl.rcParams["font.size"] == 30


LONG = "part(" + ",".join(f"option{at}=value" for at in range(12)) + "):0.5+" + "y" * 90 + ":0.5"


@pytest.mark.parametrize(
    "records",
    [
        [record(metrics={"recall": 1.0, "kv_mb": 1.0, "ref_ppl": 1.2, "span_kept": 0.0})],
        [record(metrics={"recall": 1.0, "kv_mb": None}, reasons={"kv_mb": "why"})],
        [
            record(name, amount, seed=seed, metrics={"recall": 0.0, "kv_mb": 3.0, "ref_ppl": 1.0, "span_kept": 0.5})
            for name in (LONG, "$a_b^c$", "中文", "<b>&", "[0-1]full;[2-]snapkv@adakv(floor=0.3)|refit", "kvzip@global")
            for amount in ("ratio=4", "slots=100")
            for seed in range(2)
        ],
        [
            record(context=context, depth=float(depth), metrics={"recall": 1.0, "ref_ppl": 1.0 + depth, "kv_mb": 0.0})
            for context in range(1000, 13000, 1000)
            for depth in range(0, 101, 10)
        ],
        [
            record(
                f"x{at}",
                metrics={"recall": None, "kv_mb": 3.0, "ref_ppl": at * 0.035 - 0.0165},
                reasons={"recall": "why"},
            )
            for at in range(3)
        ],
        founding([row._replace(compose=f"{row.compose}(at={at})") for at in range(3) for row in TABLE]),
    ],
    ids=["one trial", "null", "strange names", "large grid", "small differences", "51 rows"],
)
def test_edges_can_be_drawn(records: list[TrialRecord]) -> None:
    for drawing in drawn(records):
        assert drawing.save("png")
        check_page(drawing)


def test_nothing_measured_draws_nothing() -> None:
    assert drawn([record(metrics={"other": 1.0})]) == []
    # A recall that is no share has no place on a scale from 0 to 100 %.
    results = summarise([record(metrics={"recall": 7.0})], {}, METRICS)
    assert heat_maps(results, [record(metrics={"recall": 7.0})]) == []


def test_a_method_looks_the_same_whatever_the_order() -> None:
    methods = [row.compose for row in TABLE]
    assert looks(methods) == looks(reversed(methods))
    assert looks(methods)["full"] == FULL_LOOK
    colours = [look.colour for name, look in looks(methods).items() if name != "full"]
    assert sorted(colours) == sorted(PALETTE)
    assert PALETTE[-1] not in {look.colour for look in looks("abcdefg").values()}


@settings(deadline=None)
@given(st.sets(st.text(min_size=1), max_size=60))
def test_no_two_methods_look_alike(methods: set[str]) -> None:
    found = looks(methods)
    assert found.keys() == methods
    assert len(set(found.values())) == len(methods)


def test_equal_values_stand_side_by_side_around_their_place() -> None:
    places = side_by_side([1.0, 2.0, 1.0, 2.0, 1.0], 3.0)
    left, middle, right = places.of_values[0], places.of_values[2], places.of_values[4]
    assert middle - left == pytest.approx(right - middle) == pytest.approx(STEP_IN)
    assert places.groups[0].middle_in == pytest.approx(middle)
    assert side_by_side([], 3.0).of_values == ()
    assert side_by_side([5.0], 3.0).of_values == pytest.approx((1.5,), abs=1.5)


@given(st.lists(st.sampled_from([0.0, 1.0, 1.1, 5.0, 9.0]), min_size=1, max_size=40))
def test_places_are_in_order_inside_and_apart(values: list[float]) -> None:
    places = side_by_side(values, 2.8).of_values
    ranked = [place for _, place in sorted(zip(values, places, strict=True))]
    assert len(set(places)) == len(places)
    assert min(places) >= -0.05
    assert max(places) <= 2.85
    for low, high in ((a, b) for a in range(len(values)) for b in range(len(values)) if values[a] < values[b]):
        assert places[low] < places[high]
    assert ranked == sorted(ranked)


def test_spread_moves_only_what_lies_on_something() -> None:
    assert spread([(0.0, 0.0), (1.0, 1.0), (0.01, 0.0)])[1] == 0
    moved = spread([(0.0, 0.0), (0.01, 0.0)])
    assert 0.01 + moved[1] - moved[0] == pytest.approx(STEP_IN)


def test_labels_too_close_are_left_out() -> None:
    assert apart([(0.0, "a"), (0.1, "b"), (0.4, "c")], 0.3) == [(0.0, "a"), (0.4, "c")]


@given(st.text(max_size=80), st.floats(0.3, 3), st.integers(1, 4))
def test_wrapped_text_fits(text: str, width: float, lines: int) -> None:
    found = wrapped(text, width, lines)
    assert found.count("\n") < lines
    assert width_of(found) <= width + 0.15
    assert printable(found) == found
