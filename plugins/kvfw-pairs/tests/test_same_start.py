"""The metric counts leading tokens alike, and says when there is nothing to count."""

from typing import Any

import pytest
from kvfw_pairs.metric import SameStart

from kvfw import Evidence, Missing, Response, Sample, Turn


def evidence(ours: tuple[int, ...], theirs: tuple[int, ...]) -> Evidence:
    nothing: Any = None
    turn = Turn((2,))
    return Evidence(
        sample=Sample("a", "a", {}, (1,), (turn,)),
        turn=turn,
        response=Response(ours, ""),
        reference=Response(theirs, ""),
        states={},
        positions_kept=True,
        kv_bytes=0,
        overhead_bytes=0,
        timed=False,
        engine=nothing,
        reference_engine=nothing,
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "share"),
    [
        ((5, 6, 7, 8), (5, 6, 7, 8), 1.0),
        ((5, 6, 9, 8), (5, 6, 7, 8), 0.5),
        ((9, 6, 7, 8), (5, 6, 7, 8), 0.0),
        ((5,), (5, 6, 7, 8), 0.25),
        ((5, 6, 7), (5, 6), 1.0),
        ((), (5, 6), 0.0),
    ],
)
def test_leading_tokens_are_counted(ours: tuple[int, ...], theirs: tuple[int, ...], share: float) -> None:
    assert SameStart().measure(evidence(ours, theirs)) == share


def test_without_a_reference_there_is_no_value() -> None:
    assert SameStart().measure(evidence((5,), ())) == Missing("the full cache's response is empty")
