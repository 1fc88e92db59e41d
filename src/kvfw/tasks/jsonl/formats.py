"""Reads the published file formats into lines of one shape. A wrong line is named with its number."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

LETTERS: Final = "ABCD"
#: Rule and longest response (tokens) by data set; the benchmarks' own. LongBench, then InfiniteBench and SCBench.
KNOWN: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "narrativeqa": ("f1", 128),
        "qasper": ("f1", 128),
        "multifieldqa_en": ("f1", 64),
        "hotpotqa": ("f1", 32),
        "2wikimqa": ("f1", 32),
        "musique": ("f1", 32),
        "gov_report": ("rouge", 512),
        "qmsum": ("rouge", 512),
        "multi_news": ("rouge", 512),
        "trec": ("class_line", 64),
        "triviaqa": ("f1_line", 32),
        "samsum": ("rouge_line", 128),
        "passage_count": ("numbers", 32),
        "passage_retrieval_en": ("numbers", 32),
        "lcc": ("code", 64),
        "repobench-p": ("code", 64),
        "passkey": ("first_number", 6),
        "number_string": ("first_number", 12),
        "kv_retrieval": ("word", 50),
        "math_find": ("first_number", 3),
        "code_run": ("last_number", 5),
        "longbook_qa_eng": ("f1", 40),
        "longbook_choice_eng": ("letter", 40),
        "longdialogue_qa_eng": ("contained", 40),
        "longbook_sum_eng": ("rouge", 1200),
        "scbench_kv": ("word", 150),
        "scbench_prefix_suffix": ("contained", 150),
        "scbench_vt": ("contained", 30),
        "scbench_mf": ("first_number", 5),
        "scbench_many_shot": ("contained", 10),
        "scbench_qa_eng": ("f1", 40),
        "scbench_choice_eng": ("letter", 40),
        "scbench_summary": ("rouge", 200),
        "longbench_v2": ("letter", 128),
        "math": ("boxed", 1024),
    }
)


@dataclass(frozen=True)
class Asked:
    """A question and what answers it."""

    question: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """One line of a file: a context and the questions about it; ``dataset`` decides rule and length of a response."""

    number: int
    dataset: str
    context: str
    asked: tuple[Asked, ...]
    classes: tuple[str, ...] = ()


def read_lines(path: Path, form: str, dataset: str) -> tuple[Line, ...]:
    """All lines of a file but empty ones; ``dataset`` names the data set where the lines do not.

    Raises:
        ValueError: the file cannot be read or has no lines; a line is no record of the format, with its number.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text: {getattr(error, 'strerror', None) or error}") from None
    found = []
    # Not splitlines: a record may hold other line separators than \n in its texts.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                data = json.loads(line)
                found.append(_line(number, data, form, dataset))
            except ValueError as error:
                raise ValueError(f"line {number} of {path}: {error}") from None
    if not found:
        raise ValueError(f"{path} has no lines")
    return tuple(found)


def _line(number: int, data: object, form: str, dataset: str) -> Line:
    if not isinstance(data, dict):
        raise ValueError(f"a JSON object is expected, not {type(data).__name__}")
    name, context, asked, classes = FORMATS[form](data)
    name = dataset or name
    if name not in KNOWN:
        what = f"the data set {name!r} is unknown" if name else "the format does not name its data set"
        raise ValueError(f"{what}; give dataset, one of {', '.join(KNOWN)}")
    if not asked or not all(any(one.references) for one in asked):
        raise ValueError("a question without an answer")
    return Line(number, name, context, asked, classes)


Parts = tuple[str, str, tuple[Asked, ...], tuple[str, ...]]


def longbench(data: Mapping[str, Any]) -> Parts:
    """LongBench: ``context, input, answers, all_classes, dataset``."""
    classes = tuple(map(str, data.get("all_classes") or ()))
    asked = Asked(_text(data, "input"), _texts(data, "answers"))
    return str(data.get("dataset", "")).removesuffix("_e"), _text(data, "context"), (asked,), classes


def longbench_v2(data: Mapping[str, Any]) -> Parts:
    """LongBench v2: ``context, question, choice_A ... choice_D, answer`` (a letter)."""
    choices = "\n".join(f"({letter}) {_text(data, f'choice_{letter}')}" for letter in LETTERS)
    return (
        "longbench_v2",
        _text(data, "context"),
        (_choice(_text(data, "question"), choices, _text(data, "answer")),),
        (),
    )


def infinitebench(data: Mapping[str, Any]) -> Parts:
    """InfiniteBench: ``context, input, answer`` (a text or several) and ``options``, which make it a choice."""
    return "", _text(data, "context"), (_turn(data),), ()


def scbench(data: Mapping[str, Any]) -> Parts:
    """SCBench: ``context`` and ``multi_turns``, each ``input, answer`` and perhaps ``options``."""
    turns = data.get("multi_turns")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError("'multi_turns' must be a list of objects")
    return "", _text(data, "context"), tuple(map(_turn, turns)), ()


def maths(data: Mapping[str, Any]) -> Parts:
    """AIME and MATH: ``problem, answer``, in either case of the first letter; the problem is the context."""
    lower = {key.lower(): value for key, value in data.items()}
    question = "Solve the problem step by step. Put the answer alone in \\boxed{}."
    return "math", _text(lower, "problem"), (Asked(question, _texts(lower, "answer")),), ()


FORMATS: Final[Mapping[str, Callable[[Mapping[str, Any]], Parts]]] = MappingProxyType(
    {
        "longbench": longbench,
        "longbench_v2": longbench_v2,
        "infinitebench": infinitebench,
        "scbench": scbench,
        "math": maths,
    }
)


def _turn(data: Mapping[str, Any]) -> Asked:
    answers, options = _texts(data, "answer"), data.get("options")
    if not options:
        return Asked(_text(data, "input"), answers)
    texts = [str(option) for option in options]
    right = next((LETTERS[i] for i, option in enumerate(texts[: len(LETTERS)]) if option in answers), "")
    letter = right or next((answer for answer in answers if answer in tuple(LETTERS)), "")
    choices = "\n".join(f"({mark}) {option}" for mark, option in zip(LETTERS, texts, strict=False))
    return _choice(_text(data, "input"), choices, letter)


def _choice(question: str, choices: str, letter: str) -> Asked:
    if letter not in tuple(LETTERS):
        raise ValueError(f"the answer must be one of the choices {', '.join(LETTERS)}, not {letter!r}")
    return Asked(f'{question}\n{choices}\nAnswer in the form "The correct answer is (X)".', (letter,))


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name!r} must be a text, not {value!r:.40}" if name in data else f"{name!r} is missing")
    return value


def _texts(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = data.get(name)
    values = value if isinstance(value, list) else [value]
    if name not in data or not values or not all(type(item) in (str, int, float) for item in values):
        raise ValueError(
            f"{name!r} must be a text, a number or a list of them" if name in data else f"{name!r} is missing"
        )
    return tuple(map(str, values))
