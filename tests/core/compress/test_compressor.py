"""What holds of every composition, whatever its parts: found through the registry, so newcomers are held to it too."""

from dataclasses import replace
from itertools import product
from typing import cast

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import Phase, given, settings
from torch import Tensor

from helpers.observations import (
    PromptRow,
    Slot,
    check_well_formed,
    observe,
    random_row,
    reordered,
    rows_of,
    same_bits,
    slots_of,
)
from helpers.parts import Spy, by_hand, one_stage, stage_of, strange_registry
from kvfw.core.compose.budget import Amount, amount, divide
from kvfw.core.compose.build import build_part, part_class
from kvfw.core.compose.composition import parse
from kvfw.core.compress.allocation import EvenSplit
from kvfw.core.compress.compressor import Compressor, compressor
from kvfw.core.compress.merging import match_untouched
from kvfw.core.compress.scores import Scores
from kvfw.core.compress.stages import Merge, Select, Stage
from kvfw.core.contracts.parts import Allocator, LayerView, Merger, Scorer, Selector, Space
from kvfw.core.parts.part import part_option
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import default_registry
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.slots import take
from kvfw.core.state.state import KVState
from kvfw.errors import BudgetError, RunError
from kvfw.methods.scorers.snapkv import SnapKV

SINKS, RECENT = 2, 3
HALF = amount(ratio=2)


def names(kind: Kind) -> list[str]:
    return [spec.name for spec in default_registry().of_kind(kind)]


def stage_texts() -> list[str]:
    """Every form a stage can take: the conformance suite checks each part, here it is the compressor's turn."""
    registry = default_registry()
    recipes = [
        spec.name
        for spec in registry.of_kind(Kind.METHOD)
        if one_stage(spec)
        and all(
            (mark := part_option(info)) is None or mark.default is not None
            for info in part_class(spec).model_fields.values()
        )
    ]
    # streaming(positions=cache) stands for all that re-rotate; mergers that lose tokens are the conformance suite's.
    stages = {name: cast(Stage, stage_of(name)) for name in recipes}
    loses = {name for name, stage in stages.items() if isinstance(stage, Merge) and stage.merger.loses_mass}
    recipes = [name for name in recipes if not stages[name].moves_positions and name not in loses]
    selects = [f"select(scorer=position,selector={selector})" for selector in names(Kind.SELECTOR)]
    merges = [
        f"merge(merger={merger},space={space},weight=position,bias=log)"
        for merger, space in product(("ewmeans", "lookm"), names(Kind.SPACE))
    ]
    return [
        *recipes,
        "snapkv",
        "h2o",
        *selects,
        *merges,
        "merge(merger=ewmeans,weight=h2o)",
        "streaming(positions=cache)",
    ]


def merges(text: str) -> bool:
    return stage_of(text).consumes_rest


ALONE = stage_texts()
SELECTING = [text for text in ALONE if not merges(text)]
HYBRIDS = [f"{text}:0.5+ewmeans_pre:0.5" for text in SELECTING] + [
    "snapkv:0.8+ewmeans_pre:0.2",
    "uniform:0.3+snapkv:0.3+ewmeans_post(bias=log):0.4",
    "snapkv(pool=max):1/3+streaming:1/3+uniform:1/3",
    "uniform:0.4+streaming(positions=cache):0.6",
]
COMPOSITIONS = ALONE + HYBRIDS

every_composition = pytest.mark.parametrize("text", COMPOSITIONS)
few = settings(max_examples=2, deadline=None, phases=[Phase.generate])


def bound(text: str, amount_: Amount = HALF) -> Compressor:
    return compressor(parse(text), amount_, sinks=SINKS, recent=RECENT)


def observed(rows: list[PromptRow]) -> Observation:
    return observe(rows, sinks=SINKS, recent=RECENT, window=84)


@st.composite
def prompts(draw: st.DrawFn, least: int = 1) -> list[PromptRow]:
    """Rows of different lengths: from one that has no middle to one of 20 tokens."""
    lengths = draw(st.lists(st.integers(SINKS + RECENT, 20), min_size=least, max_size=3))
    seed = draw(st.integers(0, 999))
    return [random_row(length, seed + i) for i, length in enumerate(lengths)]


@st.composite
def cases(draw: st.DrawFn, least: int = 1) -> tuple[list[PromptRow], Tensor]:
    """Rows, and another budget for every row and head."""
    rows = draw(prompts(least))
    budget = [[draw(st.integers(0, row.length - SINKS - RECENT)) for _ in range(2)] for row in rows]
    return rows, torch.tensor(budget)


def whole(rows: list[PromptRow]) -> Tensor:
    return torch.tensor([[row.length - SINKS - RECENT] * 2 for row in rows])


def exact_slot(row: PromptRow, head: int, position: int) -> Slot:
    return Slot(
        float(position),
        1.0,
        0.0,
        tuple(row.keys[head, position].tolist()),
        tuple(row.values[head, position].tolist()),
    )


def turns(text: str) -> bool:
    """Whether exact tokens keep their values only, because the finished cache is rotated to new positions."""
    return "positions=cache" in text


@every_composition
@few
@given(prompts())
def test_ratio_one_is_the_identity_bit_for_bit(text: str, rows: list[PromptRow]) -> None:
    obs = observed(rows)
    state = bound(text, amount(ratio=1)).compress(obs, whole(rows))
    assert same_bits(state, take(obs.state, obs.state.valid))


@every_composition
@few
@given(cases())
def test_the_result_is_what_the_budget_says(text: str, case: tuple[list[PromptRow], Tensor]) -> None:
    """Slots, order, protected tokens, masses and exact tokens, with another budget for every row and head."""
    rows, budget = case
    obs = observed(rows)
    before = [part.clone() for part in (*obs.state.parts, obs.protected)]
    shares = tuple(stage.share for stage in parse(text).stages)
    state = bound(text).compress(obs, budget)

    check_well_formed(state)
    assert state.valid.sum(-1).tolist() == (budget + SINKS + RECENT).tolist()
    assert state.width == int(budget.max()) + SINKS + RECENT
    for i, row in enumerate(rows):
        for head in range(2):
            slots = slots_of(state, i, head)
            if not turns(text):
                protected = [*range(SINKS), *range(row.length - RECENT, row.length)]
                kept = slots[:SINKS] + slots[len(slots) - RECENT :]
                assert kept == [exact_slot(row, head, p) for p in protected]
                # Mass 1 is an exact token, and no token twice.
                exact = [slot for slot in slots if slot.mass == 1]
                assert exact == [exact_slot(row, head, int(slot.position)) for slot in exact]
                assert len({slot.position for slot in exact}) == len(exact)
            if parse(text).stages[-1].stage.consumes_rest:
                if divide(int(budget[i, head]), shares)[-1] > 0:
                    assert sum(slot.mass for slot in slots) == row.length
            else:
                assert all(slot.mass == 1 for slot in slots)
    after = (*obs.state.parts, obs.protected)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True)), "the input was changed"


@every_composition
@few
@given(cases(least=2))
def test_rows_know_nothing_of_each_other(text: str, case: tuple[list[PromptRow], Tensor]) -> None:
    """Reversing the batch reverses the result, bit for bit; alone a row gives what it gives beside others.

    Alone, products of other shapes may round differently: keys and values agree to 1e-5, all else exactly.
    """
    rows, budget = case
    obs = observed(rows)
    made = bound(text)
    together = made.compress(obs, budget)
    order = list(reversed(range(len(rows))))
    assert same_bits(made.compress(reordered(obs, order), budget[order]), rows_of(together, order))
    for i, row in enumerate(rows):
        alone = made.compress(observed([row]), budget[i : i + 1])
        for head in range(2):
            left, right = slots_of(alone, 0, head), slots_of(together, i, head)
            assert [slot.mass for slot in left] == [slot.mass for slot in right]
            for a, b in zip(left, right, strict=True):
                assert abs(a.position - b.position) <= 1e-5 * max(b.position, 1)
                assert a.bias == b.bias
                for x, y in ((a.key, b.key), (a.value, b.value)):
                    torch.testing.assert_close(torch.tensor(x), torch.tensor(y), rtol=0, atol=1e-5)
                if b.mass == 1 and not turns(text):
                    assert a == b


@every_composition
def test_the_same_again_bit_for_bit_and_nothing_shared(text: str) -> None:
    rows = [random_row(20, 7), random_row(13, 8)]
    obs, budget = observed(rows), torch.tensor([[6, 9], [8, 3]])
    made = bound(text)
    first, second = made.compress(obs, budget), made.compress(obs, budget)
    assert same_bits(first, second)
    assert same_bits(first, bound(text).compress(observed(rows), budget))
    held = {part.untyped_storage().data_ptr() for part in obs.state.parts}
    for state in (first, made.compress(obs, whole(rows))):
        assert held.isdisjoint(part.untyped_storage().data_ptr() for part in state.parts)
        slots = state.width * 2 * 2
        assert state.kv_bytes == slots * (8 + 5) * 4
        assert state.overhead_bytes == slots * 3 * 4


@every_composition
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_and_exact_tokens_stay_exact(text: str, dtype: torch.dtype) -> None:
    row = random_row(20, 7, dtype=dtype)
    state = bound(text).compress(observed([row]), torch.tensor([[6, 9]]))
    assert state.keys.dtype == state.values.dtype == dtype
    assert {part.dtype for part in (state.positions, state.mass, state.bias)} == {torch.float32}
    if not turns(text):
        for head in range(2):
            exact = [slot for slot in slots_of(state, 0, head) if slot.mass == 1]
            assert exact == [exact_slot(row, head, int(slot.position)) for slot in exact]


@every_composition
def test_the_result_does_not_depend_on_what_neighbours_asked_for(text: str) -> None:
    """A shared observation, captured for whoever needs most, gives bit for bit what one's own would."""
    # The default window of 84 is narrowed, too: the prompt is longer than that.
    rows = [random_row(92, 7)]
    made, budget = bound(text), torch.tensor([[5, 9]])
    asked = made.needs.last(90)
    own = observe(rows, sinks=SINKS, recent=RECENT, window=max(asked, 1))
    own = own.narrowed(made.needs)
    shared = observe(rows, sinks=SINKS, recent=RECENT, window=90)
    assert same_bits(made.compress(own, budget), made.compress(shared, budget))


def test_a_scorer_sees_what_it_asked_for() -> None:
    obs = observe([random_row(20, 0)], window=16)
    for queries in (0, 1, 5, 16):
        spy = Spy(queries=queries)
        stage = Select(scorer=spy, selector=build_selector("topk"))
        made = Compressor(by_hand(stage), HALF, 2, 3)
        assert made.needs == Needs(queries=queries)
        seen = spy.score(obs.narrowed(spy.needs))
        assert bool((seen == queries).all())


def build_selector(name: str) -> Selector:
    part = build_part(Kind.SELECTOR, name).value
    assert isinstance(part, Selector)
    return part


def test_needs_are_those_of_all_stages() -> None:
    made = bound("snapkv(window=9):0.5+uniform:0.2+ewmeans_pre(weight=snapkv(window=33)):0.3")
    assert made.needs == Needs(queries=33)
    assert bound("uniform:0.5+streaming:0.5").needs == Needs()


@pytest.mark.parametrize(
    ("with_nothing", "without"),
    [
        ("snapkv:0.99+uniform:0.01", "snapkv"),
        ("uniform:0.01+snapkv:0.99", "snapkv"),
        ("snapkv:0.99+ewmeans_pre:0.01", "snapkv"),
        ("snapkv:0.01+ewmeans_pre:0.99", "ewmeans_pre"),
        ("streaming(positions=cache):0.01+snapkv:0.99", "snapkv"),
    ],
)
def test_a_share_of_no_slots_does_nothing(with_nothing: str, without: str) -> None:
    obs, budget = observed([random_row(20, 3), random_row(16, 4)]), torch.tensor([[6, 4], [5, 7]])
    assert same_bits(bound(with_nothing).compress(obs, budget), bound(without).compress(obs, budget))


def test_a_share_of_no_slots_does_nothing_head_by_head() -> None:
    """Half of 1 slot is 1 for the first stage and 0 for the second; half of 4 is 2 for both."""
    obs = observed([random_row(20, 3)])
    mixed = bound("snapkv:0.5+streaming(positions=cache):0.5").compress(obs, torch.tensor([[1, 4]]))
    plain = bound("snapkv").compress(obs, torch.tensor([[1, 1]]))
    assert slots_of(mixed, 0, 0) == slots_of(plain, 0, 0)
    assert [slot.position for slot in slots_of(mixed, 0, 1)] == list(range(11, 20))


@pytest.mark.parametrize(
    "text",
    [
        "raising",
        "select(scorer=raising,selector=raising_selector)",
        "merge(merger=raising_merger,weight=raising)",
        "raising:0.5+merge(merger=raising_merger,weight=raising):0.5",
        "uniform:0.5+merge(merger=raising_merger,weight=raising):0.5",
    ],
)
def test_slots_that_reach_the_tokens_call_no_part(text: str) -> None:
    rows = [random_row(20, 3), random_row(9, 4)]
    obs = observed(rows)
    made = compressor(parse(text, strange_registry()), HALF, sinks=SINKS, recent=RECENT)
    budget = whole(rows)
    if text.startswith("raising:"):
        budget[:] = 60  # enough for the first stage alone
    assert same_bits(made.compress(obs, budget), take(obs.state, obs.state.valid))
    # One slot short, and they are called.
    budget = whole(rows)
    budget[0, 0] -= 1
    with pytest.raises(RunError, match="was called"):
        made.compress(obs, budget)


def test_heads_that_pass_are_not_shown_to_the_parts() -> None:
    """The first head's slots reach its tokens; the merger must be given nothing of it."""
    obs = observed([random_row(20, 3)])
    state = bound("ewmeans_post").compress(obs, torch.tensor([[15, 4]]))
    assert slots_of(state, 0, 0) == slots_of(obs.state, 0, 0)
    assert len(slots_of(state, 0, 1)) == 4 + SINKS + RECENT


BROKEN = [
    ("nan", "scorer NaN gave NaN in layer 0; are the model's keys finite?"),
    ("flat", "scorer Flat returned shape (1, 20); one score per row, KV head and slot is expected: (1, 2, 20)"),
    ("undeclared", "without declaring Needs(queries=...)"),
    ("merge(merger=ewmeans,weight=nan)", "scorer NaN gave NaN"),
    ("merge(merger=ewmeans,weight=flat)", "scorer Flat returned shape"),
    (
        "merge(merger=ewmeans,weight=negative)",
        "scorer Negative gave a negative or infinite score in layer 0; where scores weight a merge they must be "
        "finite and 0 or more",
    ),
    ("select(scorer=position,selector=greedy)", "selector Greedy kept [[15, 15]] tokens where [[4, 6]] were asked for"),
    (
        "select(scorer=position,selector=trespassing)",
        "selector Trespassing kept tokens that are protected or already taken",
    ),
    (
        "select(scorer=position,selector=narrow)",
        "selector Narrow returned torch.bool of shape (1, 2, 19); a bool mask of shape (1, 2, 20) is expected",
    ),
    (
        "select(scorer=position,selector=indexing)",
        "selector Indexing returned torch.int64 of shape (1, 2, 20); a bool mask",
    ),
    (
        "merge(merger=idle,weight=snapkv)",
        "merger Idle returned [[15, 15]] slots where its budget was [[4, 6]], in layer 0",
    ),
    (
        "merge(merger=dropping,weight=snapkv)",
        "merger Dropping returned slots that stand for [[4.0, 6.0]] tokens where it was given [[15.0, 15.0]], "
        "in layer 0; masses must add up",
    ),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_parts_that_break_their_contract_are_refused_by_name(text: str, message: str) -> None:
    registry = strange_registry()
    made = compressor(parse(text, registry), HALF, sinks=SINKS, recent=RECENT)
    with pytest.raises(RunError) as caught:
        made.compress(observed([random_row(20, 3)]), torch.tensor([[4, 6]]))
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["harmless_nan", "endless", "select(scorer=endless,selector=evenly)"])
def test_scores_of_protected_tokens_and_padding_do_not_matter(text: str) -> None:
    registry = strange_registry()
    obs, budget = observed([random_row(20, 3), random_row(11, 4)]), torch.tensor([[4, 6], [2, 3]])
    plain = text.replace("harmless_nan", "position").replace("endless", "position")
    strange = compressor(parse(text, registry), HALF, sinks=SINKS, recent=RECENT)
    assert same_bits(strange.compress(obs, budget), bound(plain).compress(obs, budget))


def test_a_scorer_that_two_stages_share_is_asked_once() -> None:
    calls: list[int] = []

    class Counting(Spy):
        def score(self, obs: Observation) -> Tensor:
            calls.append(1)
            return obs.state.positions

    stages = (
        Select(scorer=Counting(), selector=build_selector("topk")),
        Select(scorer=Counting(), selector=build_selector("evenly")),
    )
    made = Compressor(by_hand(*stages), HALF, SINKS, RECENT)
    made.compress(observed([random_row(20, 3)]), torch.tensor([[4, 6]]))
    assert len(calls) == 1


def test_later_stages_see_only_what_earlier_ones_left() -> None:
    obs = observed([random_row(25, 3)])
    state = bound("streaming:0.5+uniform:0.5").compress(obs, torch.tensor([[8, 8]]))
    # The tail 18..21 goes to the first; the second spaces 4 evenly over the 16 tokens 2..17.
    assert [slot.position for slot in slots_of(state, 0, 0)] == [0, 1, 2, 7, 12, 17, 18, 19, 20, 21, 22, 23, 24]


def test_a_merged_slot_that_is_left_alone_keeps_its_bias() -> None:
    """Compressing what was compressed: a slot of log mass that the merger did not touch still has it."""
    obs = observed([random_row(20, 3)])
    once = bound("ewmeans_post(bias=log)").compress(obs, torch.tensor([[6, 6]]))
    again = replace(obs.narrowed(Needs()), state=once, protected=~once.valid)
    made = compressor(parse("ewmeans_post(weight=position)"), HALF, sinks=0, recent=0)
    twice = made.compress(again, torch.tensor([[9, 10]]))
    assert twice.mass.sum(-1).tolist() == [[20, 20]]
    source, untouched = match_untouched(once, twice)
    assert untouched.sum(-1).tolist() >= [[7, 9]]
    assert torch.equal(once.bias.gather(-1, source)[untouched], twice.bias[untouched])
    assert bool((twice.bias[untouched & (twice.mass > 1)] > 0).all())


def test_equal_mean_positions_put_the_exact_token_first() -> None:
    """Tokens 4 and 6 are one point, token 5 another: both clusters have position 5."""
    row = random_row(11, 0)
    keys = torch.zeros_like(row.keys)
    keys[:, 2:8, 0] = torch.tensor([100.0, 100, 0, 50, 0, 100])
    # Every token of the middle weighs the same for a scorer that gives 0 to all.
    registry = strange_registry()
    made = compressor(parse("merge(merger=ewmeans,weight=spy)", registry), HALF, sinks=SINKS, recent=RECENT)
    state = made.compress(observed([replace(row, keys=keys)]), torch.tensor([[3, 3]]))
    check_well_formed(state)
    middle = slots_of(state, 0, 0)[SINKS:-RECENT]
    assert [(slot.position, slot.mass) for slot in middle if slot.position == 5] == [(5, 1), (5, 2)]


@pytest.mark.parametrize(("lengths", "slots"), [([105, 45, 5], [25, 10, 0]), ([2, 9], [0, 1])])
def test_middle_slots_are_counted_per_row(lengths: list[int], slots: list[int]) -> None:
    made = compressor(parse("snapkv"), amount(ratio=4), sinks=SINKS, recent=RECENT)
    assert made.middle_slots(torch.tensor(lengths)).tolist() == slots


def test_a_row_that_gets_no_slots_is_refused() -> None:
    made = compressor(parse("snapkv"), amount(ratio=4), sinks=SINKS, recent=RECENT)
    with pytest.raises(BudgetError, match="ratio=4 leaves 0 slots for a middle of 3 tokens"):
        made.middle_slots(torch.tensor([105, 8]))


def test_negative_counts_are_refused_before_anything_runs() -> None:
    with pytest.raises(BudgetError, match="sinks is -1"):
        compressor(parse("snapkv"), HALF, sinks=-1, recent=3)


def test_the_uniform_allocator_divides_without_remainder() -> None:
    budgets = EvenSplit().allocate(
        torch.tensor([5 * 7, 9 * 7]), [LayerView(i, heads, torch.tensor([20, 20])) for i, heads in enumerate((2, 4, 1))]
    )
    assert [budget.tolist() for budget in budgets] == [
        [[5] * 2, [9] * 2],
        [[5] * 4, [9] * 4],
        [[5], [9]],
    ]


def test_parts_fulfil_their_contracts() -> None:
    contracts = {
        Kind.SCORER: Scorer,
        Kind.SELECTOR: Selector,
        Kind.MERGER: Merger,
        Kind.SPACE: Space,
    }
    for kind, contract in contracts.items():
        for name in names(kind):
            assert isinstance(build_part(kind, name).value, contract)
    for text in ALONE:
        assert isinstance(stage_of(text), Stage)
        assert isinstance(stage_of(text), Select | Merge)
    assert isinstance(EvenSplit(), Allocator)


@pytest.mark.parametrize("name", names(Kind.SPACE))
def test_a_space_leads_back(name: str) -> None:
    space = build_part(Kind.SPACE, name).value
    assert isinstance(space, Space)
    obs = observed([random_row(20, 3), random_row(11, 4)])
    inside = space.forward(obs.state, obs.rope)
    back = space.inverse(inside, obs.rope)
    for there, here in zip(inside.parts[1:], obs.state.parts[1:], strict=True):
        assert torch.equal(there, here)
    torch.testing.assert_close(back.keys[obs.state.valid], obs.state.keys[obs.state.valid], rtol=0, atol=5e-6)


def test_a_compressor_is_immutable() -> None:
    made = bound("snapkv")
    with pytest.raises(AttributeError):
        made.sinks = 5  # type: ignore[misc]
    assert made == bound("snapkv")


def kept(state: KVState) -> list[float]:
    return [slot.position for slot in slots_of(state, 0, 0)]


def test_the_founding_hybrid_keeps_snapkvs_first_choices() -> None:
    """0.8 of 10 slots are SnapKV's 8; the other 2 stand for all that is left."""
    obs = observed([random_row(40, 3)])
    exact = kept(bound("snapkv").compress(obs, torch.tensor([[8, 8]])))
    hybrid = bound("snapkv:0.8+ewmeans_pre:0.2").compress(obs, torch.tensor([[10, 10]]))
    slots = slots_of(hybrid, 0, 0)
    assert set(exact) <= {slot.position for slot in slots if slot.mass == 1}
    assert sum(slot.mass for slot in slots if slot.position not in exact) == 40 - len(exact)


def test_shared_scores_cannot_be_written_to_and_belong_to_their_observation() -> None:
    first, second = observe([random_row(45, seed=1)]), observe([random_row(45, seed=2)])
    scorer = SnapKV(window=8)
    scores = Scores(first)
    scores.of(scorer).fill_(-torch.inf)
    assert bool(scores.of(scorer).isfinite().all())
    position = build_part(Kind.SCORER, "position").value
    assert isinstance(position, Scorer)
    scores.of(position).zero_()
    assert bool((first.state.positions > 0).any())
    bound = compressor(parse("snapkv(window=8)"), amount(ratio=4), sinks=2, recent=3)
    with pytest.raises(ValueError, match="another observation"):
        bound.compress(second, torch.full((1, 2), 10), scores)


@pytest.mark.parametrize(
    ("text", "written_out"),
    [
        ("halves", "snapkv(window=5):1/3+select(scorer=snapkv(window=5),selector=evenly):2/3"),
        (
            "position:0.25+tailed(by=snapkv(window=4)):0.75",
            "position:0.25+snapkv(window=4):0.15+select(scorer=snapkv(window=4),selector=evenly):0.3+"
            "merge(merger=ewmeans(iters=3),weight=snapkv(window=4),bias=log):0.3",
        ),
    ],
)
@few
@given(cases())
def test_a_sum_recipe_is_what_it_stands_for_slot_for_slot(
    text: str, written_out: str, case: tuple[list[PromptRow], Tensor]
) -> None:
    rows, budget = case
    obs = observed(rows)
    by = compressor(parse(text, strange_registry()), HALF, sinks=SINKS, recent=RECENT)
    assert by.needs == bound(written_out).needs
    assert same_bits(by.compress(obs, budget), bound(written_out).compress(obs, budget))


def test_a_compressor_runs_the_stages_that_were_parsed() -> None:
    composition = parse("snapkv:0.5+ewmeans_pre:0.5")
    made = compressor(composition, HALF, sinks=SINKS, recent=RECENT)
    assert [id(stage) for stage in made.stages] == [id(each.stage) for each in composition.stages]
