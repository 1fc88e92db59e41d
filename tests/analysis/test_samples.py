"""Responses side by side, escaped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.report_examples import HYBRID, experiment, record
from kvfw.analysis.samples import escape, pick, samples_markdown
from kvfw.core.contracts.records import PromptKey


def test_a_prompt_shows_its_answer_and_every_response() -> None:
    trials = [
        record(HYBRID, metrics={"recall": 0.0}, response="K3|Q9\nis `it`"),
        record("full", "ratio=1", seed=1),
        record("full", "ratio=1"),
        record("h2o", metrics={}, response=" \n"),
    ]
    assert samples_markdown(trials) == (
        "# Samples\n"
        "\n"
        "## 1024 tokens, depth 10 %, seed 0\n"
        "\n"
        "- answer: K3Q9\n"
        "- prompt: abababababab\n"
        "\n"
        "| compose | amount | found | response |\n"
        "| --- | --- | --- | --- |\n"
        "| full | ratio=1 | yes | the code is K3Q9 |\n"
        "| snapkv:0.8+ewmeans\\_pre:0.2 | ratio=4 | no | K3\\|Q9<br>is \\`it\\` |\n"
        "| h2o | ratio=4 | – | *(empty)* |\n"
    )


def test_the_first_seed_of_each_length_and_depth_is_shown() -> None:
    text = samples_markdown(experiment())
    assert text.count("\n## ") == 15
    assert "seed 1" not in text
    assert text.index("## 1024 tokens, depth 90 %") < text.index("## 2048 tokens, depth 10 %")


def test_too_many_prompts_are_thinned_evenly() -> None:
    prompts = [PromptKey(context, depth, 0) for context in (1, 2, 3) for depth in (10.0, 50.0, 90.0)]
    assert pick(prompts, 3) == [PromptKey(1, 10.0, 0), PromptKey(2, 10.0, 0), PromptKey(3, 10.0, 0)]
    assert pick(reversed(prompts), 9) == prompts
    assert len(pick(prompts, 5)) == 5
    assert pick([], 5) == []


def test_a_long_response_is_cut() -> None:
    assert "| aaaa … |" in samples_markdown([record(response="a" * 50)], max_chars=4)


def test_nothing_recorded_is_said() -> None:
    assert samples_markdown([]) == "# Samples\n\nNo trial is recorded yet.\n"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
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
    (row,) = [line for line in samples_markdown([record(response=text)]).splitlines() if line.startswith("| snapkv")]
    bars = [at for at, character in enumerate(row) if character == "|" and row[at - 1] != "\\"]
    assert len(bars) == 5
