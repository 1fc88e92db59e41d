"""Which prompts are shown, and what rows answered to them."""

from helpers.report_examples import CONTEXTS, DEPTHS, HYBRID, SEEDS, experiment, record
from kvfw.analysis.samples import pick, samples
from kvfw.core.contracts.records import PromptKey, TrialRecord


def prompts(contexts: int, depths: int, seeds: int) -> dict[PromptKey, TrialRecord]:
    grid = ((context, depth, seed) for seed in range(seeds) for context in range(contexts) for depth in range(depths))
    made = [record(context=context, depth=float(depth), seed=seed) for context, depth, seed in grid]
    return {trial.key.prompt: trial for trial in reversed(made)}


def names(found: list[PromptKey]) -> list[str]:
    return [prompt.sample for prompt in found]


def test_the_first_group_of_each_stratum_is_shown() -> None:
    titles = [sample.title for sample in samples(experiment())]
    assert titles == [f"context {context}, depth {depth:g}, seed 0" for context in CONTEXTS for depth in DEPTHS]
    assert len(CONTEXTS) * len(DEPTHS) * len(SEEDS) > len(titles)


def test_more_groups_are_shown_as_long_as_they_fit() -> None:
    assert names(pick(prompts(2, 1, 3), 5)) == ["0-0-0", "0-0-1", "1-0-0", "1-0-1"]
    ungrouped = {
        prompt: trial.model_copy(update={"group": str(at)})
        for at, (prompt, trial) in enumerate(prompts(5, 1, 1).items())
    }
    assert len(pick(ungrouped, 3)) == 3


def test_too_many_prompts_are_thinned_evenly() -> None:
    assert names(pick(prompts(3, 3, 1), 3)) == ["0-0-0", "1-0-0", "2-0-0"]
    assert len(pick(prompts(3, 3, 1), 9)) == 9
    assert len(pick(prompts(3, 3, 1), 5)) == 5
    assert pick({}, 5) == []


def test_rows_stand_in_the_order_of_the_table_and_later_questions_are_numbered() -> None:
    first = record(HYBRID)
    second = first.model_copy(update={"key": first.key.model_copy(update={"turn": 1}), "references": ("a", "b")})
    found = samples([first, second, record("full", "ratio=1")])
    assert [sample.title for sample in found] == [
        "context 1024, depth 10, seed 0",
        "context 1024, depth 10, seed 0, question 2",
    ]
    assert [trial.key.compose for trial in found[0].trials] == ["full", HYBRID]
    assert found[1].references == ("a", "b")


def test_a_sample_without_facets_is_called_by_its_name() -> None:
    assert samples([record().model_copy(update={"facets": {}})])[0].title == "sample 1024-10-0"


def test_samples_of_the_same_facets_are_told_apart_by_name() -> None:
    alike = [record(seed=seed).model_copy(update={"facets": {"length": 9.0}}) for seed in (0, 1)]
    later = alike[1].model_copy(update={"key": alike[1].key.model_copy(update={"turn": 1})})
    alone = record(seed=2).model_copy(update={"facets": {"length": 12.0}})
    assert [sample.title for sample in samples([*alike, later, alone])] == [
        "length 9, sample 1024-10-0",
        "length 9, sample 1024-10-1",
        "length 9, sample 1024-10-1, question 2",
        "length 12",
    ]
