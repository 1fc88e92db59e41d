"""Files of the published formats, and the rules they are scored by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kvfw.tasks.jsonl.jsonl import Jsonl, middle_cut
from kvfw.tasks.jsonl.scoring import RULES, boxed
from kvfw.verify.instruments.tokenizer import SuiteTokenizer

LONG = "The ship sailed in the winter. " * 40
QASPER = {"dataset": "qasper", "context": LONG, "input": "When did it sail?", "answers": ["in winter", "winter"]}
CHOICES = {f"choice_{letter}": f"text {letter}" for letter in "ABCD"}
V2 = {"context": LONG, "question": "Which?", **CHOICES, "answer": "C"}
CASES = [
    ("longbench", "", QASPER, "the winter", 1.0),
    ("longbench_v2", "", V2, "**The correct answer is (C)**", 1.0),
    ("infinitebench", "passkey", {"context": LONG, "input": "Key?", "answer": ["71432"]}, " 71432. 5", 1.0),
    (
        "infinitebench",
        "longbook_choice_eng",
        {"context": LONG, "input": "?", "options": ["x", "y"], "answer": ["y"]},
        "B",
        1.0,
    ),
    ("math", "", {"Problem": "What is 1 + 1?", "Answer": 2}, r"so \boxed{1}, no: \boxed{ 02 }", 1.0),
]


def written(folder: Path, *records: Any) -> str:
    path = folder / "records.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


@pytest.mark.parametrize(("form", "dataset", "record", "response", "score"), CASES)
def test_each_format_is_read_and_scored_by_its_own_rule(
    tmp_path: Path, form: Any, dataset: str, record: dict[str, Any], response: str, score: float
) -> None:
    task = Jsonl(file=written(tmp_path, record), format=form, dataset=dataset)
    (sample,) = task.samples(SuiteTokenizer())
    assert task.score(response, sample, sample.turns[0]) == {"score": score}
    assert task.score("no idea", sample, sample.turns[0]) == {"score": 0.0}


def test_several_questions_of_a_record_are_turns_about_one_context(tmp_path: Path) -> None:
    turns = [{"input": f"key {n}?", "answer": f"value-{n}"} for n in range(3)]
    record = {"id": 0, "context": LONG, "multi_turns": turns}
    task = Jsonl(file=written(tmp_path, record), format="scbench", dataset="scbench_kv")
    (sample,) = task.samples(SuiteTokenizer())
    assert [turn.references for turn in sample.turns] == [("value-0",), ("value-1",), ("value-2",)]
    assert task.score('"value-1"', sample, sample.turns[1]) == {"score": 1.0}


def test_a_long_context_loses_its_middle(tmp_path: Path) -> None:
    assert middle_cut(tuple(range(10)), 5) == (0, 1, 7, 8, 9)
    assert middle_cut((1, 2), 5) == (1, 2)
    whole, cut = (
        next(iter(Jsonl(file=written(tmp_path, QASPER), length=length).samples(SuiteTokenizer()))).context_ids
        for length in (4096, 100)
    )
    assert len(cut) < len(whole)
    assert cut[-50:] == whole[-50:]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("{", "line 2 of .*: Expecting"),
        ("[]", "line 2 of .*: a JSON object is expected, not list"),
        (json.dumps({**QASPER, "dataset": "mine"}), "line 2 of .*: the data set 'mine' is unknown"),
        (json.dumps({**QASPER, "answers": []}), "line 2 of .*: 'answers' must be"),
        (json.dumps({**QASPER, "context": 7}), "line 2 of .*: 'context' must be a text, not 7"),
    ],
)
def test_a_wrong_line_is_named_with_its_number(tmp_path: Path, wrong: str, says: str) -> None:
    path = Path(written(tmp_path, QASPER))
    path.write_text(path.read_text() + wrong)
    with pytest.raises(ValidationError, match=says):
        Jsonl(file=str(path))


@pytest.mark.parametrize(
    ("rule", "response", "references", "score"),
    [
        ("f1", "The big white whale", ["a white whale"], 0.8),
        ("rouge", "the cat sat on a mat", ["the cat lay on the mat"], 4 / 6),
        ("f1_line", "\nwhale\nQuestion: what", ["whale"], 1.0),
        ("numbers", "Paragraph 3, or 5", ["Paragraph 3"], 0.5),
        ("code", "# a comment\nreturn x\nmore", ["return x"], 1.0),
        ("code", "abcd", ["bd"], 4 / 6),
        ("word", "{'key': 'ab-c'}", ["ab-c"], 1.0),
        ("word", "xab-c", ["ab-c"], 0.0),
        ("contained", "AAAAA and bbbbb", ["aaaaa", "CCCCC"], 0.5),
        ("last_number", "f(3) is -7.", ["-7"], 1.0),
        ("letter", "A mistake: the correct answer is B", ["B"], 1.0),
        ("letter", "All of them", ["A"], 0.0),
        ("boxed", r"\boxed{\dfrac{1}{2}}", [r"\frac{1}{2}"], 1.0),
    ],
)
def test_rules_score_as_worked_out_by_hand(rule: str, response: str, references: list[str], score: float) -> None:
    assert RULES[rule](response, references, ()) == pytest.approx(score)


def test_naming_several_classes_divides_the_score_but_a_part_of_the_right_name_does_not_count() -> None:
    classes = ("Number", "Number of something", "Place")
    assert RULES["class_line"]("Number of something", ["Number of something"], classes) == 1.0
    assert RULES["class_line"]("Number or Place", ["Place"], classes) == 0.5
    assert RULES["class_line"]("x\nPlace", ["Place"], classes) == 0.0


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} then \boxed{\frac{a}{b_{2}}}.", r"\frac{a}{b_{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{5} and \boxed{6", "5"),
        ("boxed 5", None),
    ],
)
def test_the_last_closed_box_counts_with_its_braces_balanced(text: str, content: str | None) -> None:
    assert boxed(text) == content
