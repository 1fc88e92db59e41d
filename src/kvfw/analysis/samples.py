"""Every composition's answer to the same prompt, for a choice of prompts."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kvfw.analysis.results import row_order
from kvfw.analysis.stats import natural
from kvfw.core.contracts.records import PromptKey, RowKey, TrialRecord, stratum_of
from kvfw.core.contracts.task import facet_text


class PromptAnswers(NamedTuple):
    """One prompt and the trials that answered it, in the order of their rows."""

    title: str
    references: tuple[str, ...]
    prompt_sha256: str
    trials: tuple[TrialRecord, ...]


def samples(
    records: Iterable[TrialRecord], *, order: Sequence[RowKey] = (), max_prompts: int = 15
) -> list[PromptAnswers]:
    """Responses side by side, for a choice of prompts.

    Args:
        records: in any order.
        order: the wanted order of rows, see :func:`~kvfw.analysis.results.row_order`.
        max_prompts: see :func:`pick`.
    """
    by_prompt: dict[PromptKey, dict[RowKey, TrialRecord]] = defaultdict(dict)
    appeared: dict[RowKey, None] = {}
    for record in records:
        by_prompt[record.key.prompt].setdefault(record.key.row, record)
        appeared[record.key.row] = None
    rows = row_order(appeared, order)
    firsts = {prompt: next(iter(trials.values())) for prompt, trials in by_prompt.items()}
    samples_of: dict[str, set[str]] = defaultdict(set)
    for trial in firsts.values():
        samples_of[_facets(trial)].add(trial.key.sample)
    return [
        PromptAnswers(
            _title(firsts[prompt], samples_of),
            firsts[prompt].references,
            firsts[prompt].prompt_sha256,
            tuple(by_prompt[prompt][row] for row in rows if row in by_prompt[prompt]),
        )
        for prompt in pick(firsts, max_prompts)
    ]


def pick(trials: Mapping[PromptKey, TrialRecord], at_most: int) -> list[PromptKey]:
    """The prompts to show, ordered by their facets.

    All prompts of every stratum's first group, then of every second group, and so on while they fit; if the first
    groups alone are too many, an even selection of them.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for group in sorted({trial.group for trial in trials.values()}, key=natural):
        groups[stratum_of(group)].append(group)
    rounds: dict[int, list[PromptKey]] = defaultdict(list)
    for prompt, trial in trials.items():
        rounds[groups[stratum_of(trial.group)].index(trial.group)].append(prompt)
    chosen: list[PromptKey] = []
    for _, prompts in sorted(rounds.items()):
        if chosen and len(chosen) + len(prompts) > at_most:
            break
        chosen += prompts
    chosen.sort(key=lambda prompt: trials[prompt].order[2:])
    return chosen[:: max(1, math.ceil(len(chosen) / max(1, at_most)))]


def _facets(trial: TrialRecord) -> str:
    return ", ".join(f"{name} {facet_text(value)}" for name, value in trial.facets.items())


def _title(trial: TrialRecord, samples_of: Mapping[str, Collection[str]]) -> str:
    """Facets, the sample's id unless it alone has them, and the question's number from the second on."""
    facets = _facets(trial)
    sample = f"sample {trial.key.sample}" if not facets or len(samples_of[facets]) > 1 else ""
    question = f"question {trial.key.turn + 1}" if trial.key.turn else ""
    return ", ".join(filter(None, (facets, sample, question)))
