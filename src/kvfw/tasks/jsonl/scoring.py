"""The benchmarks' own rules for a right response, each from 0 to 1."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from kvfw.tasks.jsonl.similarity import edit_similarity, f1, rouge_l

Rule = Callable[[str, Sequence[str], Sequence[str]], float]
"""Scores a response by its references and, where there are any, the classes to choose from."""


def best(alike: Callable[[str, str], float], response: str, references: Sequence[str], _: Sequence[str]) -> float:
    """The likeness to the reference it is most like."""
    return max((alike(response, reference) for reference in references), default=0.0)


def first_line(rule: Rule, response: str, references: Sequence[str], classes: Sequence[str]) -> float:
    """A rule applied to the response's first line with text."""
    return rule(response.lstrip("\n").partition("\n")[0], references, classes)


def code_line(response: str, references: Sequence[str], _: Sequence[str]) -> float:
    """Edit similarity of the first line that is no comment and no fence."""
    lines = response.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return max((edit_similarity(line, reference) for reference in references), default=0.0)


def chosen_class(response: str, references: Sequence[str], classes: Sequence[str]) -> float:
    """1 over the number of classes named, if the right one is among them; a part of the right name does not count."""

    def of(reference: str) -> float:
        named = [one for one in classes if one in response and not (one in reference and one != reference)]
        return 1 / len(named) if reference in named else 0.0

    return max(map(of, references), default=0.0)


def share_of_numbers(response: str, references: Sequence[str], _: Sequence[str]) -> float:
    """The share of the numbers in the response that are the reference's (its last number)."""
    found = re.findall(r"\d+", response)
    wanted = {numbers[-1] for reference in references if (numbers := re.findall(r"\d+", reference))}
    return sum(number in wanted for number in found) / len(found) if found else 0.0


def first_number(response: str, references: Sequence[str], _: Sequence[str]) -> float:
    """1 if the first number of the response is a reference."""
    found = re.search(r"-?\d+(?:\.\d+)?", response)
    return float(found is not None and found.group() in references)


def last_number(response: str, references: Sequence[str], _: Sequence[str]) -> float:
    """1 if the last whole number of the response is a reference."""
    found = re.findall(r"-?\d+", response)
    return float(bool(found) and found[-1] in references)


def word_of(response: str, references: Sequence[str], _: Sequence[str]) -> float:
    """1 if a reference is one of the words left when quotes, commas, colons and brackets are blanked."""
    words = re.sub(r"[\"':,.{}\[\]]", " ", response).split()
    return float(any(reference in words for reference in references))


def contained(response: str, references: Sequence[str], _: Sequence[str]) -> float:
    """The share of references that occur, case ignored."""
    return sum(reference.lower() in response.lower() for reference in references) / max(len(references), 1)


def letter(response: str, references: Sequence[str], _: Sequence[str]) -> float:
    """1 if the letter the response settles on is right: "The correct answer is (B)", or else a letter by itself."""
    plain = response.replace("*", "")
    found = re.search(r"answer is \(?([A-D])\b", plain) or re.match(r"\s*\(?([A-D])\b", plain)
    return float(found is not None and found.group(1) in references)


def boxed_answer(response: str, references: Sequence[str], _: Sequence[str]) -> float:
    r"""1 if the content of the last ``\boxed{...}`` is a reference, spaces and dollar signs left out."""
    content = boxed(response)
    return float(content is not None and plain_maths(content) in map(plain_maths, references))


def boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` that is closed, braces in it balanced; None if there is none."""
    for start in reversed([match.end() for match in re.finditer(r"\\f?boxed\s*\{", text)]):
        depth = 1
        for end, character in enumerate(text[start:], start=start):
            escaped = text[end - 1] == "\\" and text[end - 2] != "\\"
            depth += 0 if escaped else (character == "{") - (character == "}")
            if depth == 0:
                return text[start:end]
    return None


def plain_maths(text: str) -> str:
    """An answer without what does not change it: spaces, dollar signs, sizes of brackets, leading zeros of a number."""
    text = (
        re.sub(r"\\(?:left|right|[,;! ])|\\?\$|\s|\.$", "", text).replace("\\dfrac", "\\frac").replace("tfrac", "frac")
    )
    return str(int(text)) if re.fullmatch(r"\d+", text) else text


F1: Final = partial(best, f1)
ROUGE: Final = partial(best, rouge_l)
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "f1": F1,
        "f1_line": partial(first_line, F1),
        "rouge": ROUGE,
        "rouge_line": partial(first_line, ROUGE),
        "class_line": partial(first_line, chosen_class),
        "numbers": share_of_numbers,
        "code": code_line,
        "letter": letter,
        "first_number": first_number,
        "last_number": last_number,
        "word": word_of,
        "contained": contained,
        "boxed": boxed_answer,
    }
)
