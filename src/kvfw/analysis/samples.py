"""``samples.md``: what every composition answered to the same prompt, one table per prompt."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvfw.analysis.results import RECALL, depth_text, row_order
from kvfw.core.contracts.records import PromptKey, RowKey, TrialRecord

MARKED = re.compile(r"[\\`*_\[\]<>|~&#$]")
"""Characters that Markdown, its tables or HTML inside it would take for their own."""


class RowAnswer(NamedTuple):
    """What one row answered."""

    compose: str
    amount: str
    found: str
    response: str


class PromptAnswers(NamedTuple):
    """One prompt and what every row answered to it."""

    title: str
    answer: str
    prompt_sha256: str
    answers: tuple[RowAnswer, ...]


def samples_markdown(
    records: Iterable[TrialRecord],
    *,
    order: Sequence[RowKey] = (),
    max_prompts: int = 15,
    max_chars: int = 400,
) -> str:
    """Responses side by side, for the first seed of each context and depth.

    Args:
        records: in any order.
        order: compositions in the wanted order, see :func:`~kvfw.analysis.results.row_order`.
        max_prompts: of more prompts, an even spread is shown.
        max_chars: of a longer response, the beginning is shown.

    Returns:
        Markdown; responses are escaped, so none can break out of its cell.
    """
    sections = [
        _section(sample) for sample in samples(records, order=order, max_prompts=max_prompts, max_chars=max_chars)
    ]
    return "\n".join(["# Samples\n", *(sections or ["No trial is recorded yet.\n"])])


def samples(
    records: Iterable[TrialRecord],
    *,
    order: Sequence[RowKey] = (),
    max_prompts: int = 15,
    max_chars: int = 400,
) -> list[PromptAnswers]:
    """The same as data, nothing escaped; arguments as of :func:`samples_markdown`."""
    by_prompt: dict[PromptKey, dict[RowKey, TrialRecord]] = defaultdict(dict)
    appeared: dict[RowKey, None] = {}
    for record in records:
        by_prompt[record.key.prompt].setdefault(record.key.row, record)
        appeared[record.key.row] = None
    rows = row_order(appeared, order)
    return [
        _sample(prompt, [by_prompt[prompt][row] for row in rows if row in by_prompt[prompt]], max_chars)
        for prompt in pick(by_prompt, max_prompts)
    ]


def pick(prompts: Iterable[PromptKey], at_most: int) -> list[PromptKey]:
    """The lowest seed of each context and depth, in that order; an even spread if they are too many."""
    first: dict[tuple[int, float], PromptKey] = {}
    for prompt in sorted(prompts):
        first.setdefault((prompt.context, prompt.depth), prompt)
    return list(first.values())[:: max(1, math.ceil(len(first) / max(1, at_most)))]


def escape(text: str) -> str:
    """Text that shows as itself in one cell of a Markdown table."""
    marked = MARKED.sub(r"\\\g<0>", text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " "))
    return "".join(_visible(character) for character in marked)


def _sample(prompt: PromptKey, trials: Sequence[TrialRecord], max_chars: int) -> PromptAnswers:
    return PromptAnswers(
        f"{prompt.context} tokens, depth {depth_text(prompt.depth)} %, seed {prompt.seed}",
        trials[0].answer,
        trials[0].prompt_sha256,
        tuple(
            RowAnswer(trial.key.compose, trial.key.amount, _found(trial), _cut(trial.response, max_chars))
            for trial in trials
        ),
    )


def _section(sample: PromptAnswers) -> str:
    lines = [
        f"## {sample.title}",
        "",
        f"- answer: {escape(sample.answer)}",
        f"- prompt: {sample.prompt_sha256[:12]}",
        "",
        "| compose | amount | found | response |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {escape(each.compose)} | {escape(each.amount)} | {each.found} | {escape(each.response) or '*(empty)*'} |"
        for each in sample.answers
    ]
    return "\n".join(lines) + "\n"


def _found(trial: TrialRecord) -> str:
    recall = trial.metrics.get(RECALL)
    return "–" if recall is None else {1.0: "yes", 0.0: "no"}.get(recall, f"{recall:.2f}")


def _cut(text: str, max_chars: int) -> str:
    """The beginning; nothing where there is only white space."""
    if not text.strip():
        return ""
    return text if len(text) <= max_chars else text[:max_chars] + " …"


def _visible(character: str) -> str:
    if character == "\n":
        return "<br>"
    # Control characters and separators such as U+2028 may end a line in some readers.
    return character if character.isprintable() else f"\\\\u{ord(character):04x}"
