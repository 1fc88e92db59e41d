"""What every composition answered to the same prompt."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvfw.analysis.results import facet_text, row_order
from kvfw.analysis.stats import natural
from kvfw.core.contracts.records import PromptKey, RowKey, TrialRecord, stratum_of


class PromptAnswers(NamedTuple):
    """One prompt and the trials of all rows that answered it, in the order of the rows."""

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
        order: compositions in the wanted order, see :func:`~kvfw.analysis.results.row_order`.
        max_prompts: see :func:`pick`.
    """
    by_prompt: dict[PromptKey, dict[RowKey, TrialRecord]] = defaultdict(dict)
    appeared: dict[RowKey, None] = {}
    for record in records:
        by_prompt[record.key.prompt].setdefault(record.key.row, record)
        appeared[record.key.row] = None
    rows = row_order(appeared, order)
    firsts = {prompt: next(iter(trials.values())) for prompt, trials in by_prompt.items()}
    return [
        PromptAnswers(
            _title(firsts[prompt]),
            firsts[prompt].references,
            firsts[prompt].prompt_sha256,
            tuple(by_prompt[prompt][row] for row in rows if row in by_prompt[prompt]),
        )
        for prompt in pick(firsts, max_prompts)
    ]


def pick(trials: Mapping[PromptKey, TrialRecord], at_most: int) -> list[PromptKey]:
    """The prompts to show, ordered by their facets.

    The first group of every stratum, then the second of every stratum, as long as they fit; an even spread of the
    first ones if these alone are too many.
    """
    ranks: dict[str, list[str]] = defaultdict(list)
    for group in sorted({trial.group for trial in trials.values()}, key=natural):
        ranks[stratum_of(group)].append(group)
    rounds: dict[int, list[PromptKey]] = defaultdict(list)
    for prompt, trial in trials.items():
        rounds[ranks[stratum_of(trial.group)].index(trial.group)].append(prompt)
    chosen: list[PromptKey] = []
    for _, prompts in sorted(rounds.items()):
        if chosen and len(chosen) + len(prompts) > at_most:
            break
        chosen += prompts
    chosen.sort(key=lambda prompt: trials[prompt].order[2:])
    return chosen[:: max(1, math.ceil(len(chosen) / max(1, at_most)))]


def _title(trial: TrialRecord) -> str:
    facets = [f"{name} {facet_text(value)}" for name, value in trial.facets.items()] or [f"sample {trial.key.sample}"]
    return ", ".join([*facets, *([f"question {trial.key.turn + 1}"] if trial.key.turn else [])])
