"""A task whose prompts are not what was asked for is refused before anything is measured."""

import pytest

from kvfw.core.contracts.task import Prompt, Trial
from kvfw.errors import RunError
from kvfw.runner.plan.limits import check_prompt

TRIAL = Trial(10, 50.0, 0)


def prompt(tokens: int = 10, needle: range = range(3, 5), context_end: int = 8) -> Prompt:
    return Prompt(tuple(range(tokens)), needle, "answer", context_end, "", "")


def test_what_was_asked_for_passes() -> None:
    check_prompt(prompt(), TRIAL, "mine")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (prompt(tokens=9), "task 'mine' made a prompt of 9 tokens where 10 were asked for"),
        (prompt(context_end=11), "whose context ends after 11"),
        (prompt(context_end=0), "whose context ends after 0"),
        (prompt(needle=range(5000)), "whose needle is at 0 to 5000"),
        (prompt(needle=range(4, 4)), "whose needle is at 4 to 4"),
        (prompt(needle=range(-1, 3)), "whose needle is at -1 to 3"),
    ],
)
def test_what_is_not_is_refused(wrong: Prompt, message: str) -> None:
    with pytest.raises(RunError, match=message):
        check_prompt(wrong, TRIAL, "mine")
