"""Samples in Markdown, and texts that could break out of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.report_examples import HYBRID, METRICS, record
from kvfw.report.markdown import escape, samples_markdown


def test_a_prompt_shows_its_answer_and_every_response() -> None:
    trials = [
        record(HYBRID, metrics={"recall": 0.0}, response="K3|Q9\nis `it`"),
        record("full", "ratio=1"),
        record("h2o", metrics={}, response=" \n"),
    ]
    assert samples_markdown(trials, METRICS) == (
        "# Samples\n"
        "\n"
        "## context 1024, depth 10, seed 0\n"
        "\n"
        "- answer: K3Q9\n"
        "- prompt: abababababab\n"
        "\n"
        "| Composition | Amount | Recall | Response |\n"
        "| --- | --- | --- | --- |\n"
        "| full | ratio 1 | hit | the code is K3Q9 |\n"
        "| snapkv:0.8+ewmeans\\_pre:0.2 | ratio 4 | miss | K3\\|Q9<br>is \\`it\\` |\n"
        "| h2o | ratio 4 | – | *(empty)* |\n"
    )


def test_a_long_response_is_cut() -> None:
    assert "| aaaa … |" in samples_markdown([record(response="a" * 50)], METRICS, max_chars=4)


def test_nothing_recorded_is_said() -> None:
    assert samples_markdown([], METRICS) == "# Samples\n\nNo trial is recorded yet.\n"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("[0-1]full;[2-]snapkv@adakv(floor=0.3)|refit", r"\[0-1\]full;\[2-\]snapkv@adakv(floor=0.3)\|refit"),
        ("a\\|b", r"a\\\|b"),
        ("a\r\nb\rc\td", "a<br>b<br>c d"),
        ("<b>&amp;", r"\<b\>\&amp;"),
        ("**x** _y_ [z](w)", r"\*\*x\*\* \_y\_ \[z\](w)"),
        ("\x1b\u2028", "\\\\u001b\\\\u2028"),
    ],
)
def test_text_shows_as_itself(text: str, escaped: str) -> None:
    assert escape(text) == escaped


@given(st.text())
def test_no_text_breaks_out_of_its_cell(text: str) -> None:
    (row,) = [
        line for line in samples_markdown([record(response=text)], METRICS).splitlines() if line.startswith("| snapkv")
    ]
    bars = [at for at, character in enumerate(row) if character == "|" and row[at - 1] != "\\"]
    assert len(bars) == 5
