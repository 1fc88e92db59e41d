"""Marks tokens that look rare: codes, numbers, acronyms. Works on token ids, so no text is encoded again."""

import re
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

#: Runs of at least two capitals or digits, and every single digit.
RARE = re.compile(r"[A-Z0-9]{2,}|\d")
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@runtime_checkable
class Vocabulary(Protocol):
    """The methods of a tokenizer used here."""

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of special tokens."""

    def convert_ids_to_tokens(self, ids: list[int]) -> Any:
        """Vocabulary entries (``list[str]``) of ids; ``Any`` because transformers declares a union over its modes."""


def rare_tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> list[float]:
    """1.0 for every token that overlaps a match of :data:`RARE` in the text, else 0.0.

    Vocabulary entries are joined unchanged. Byte-level and SentencePiece vocabularies spell white space and non-ASCII
    text with other characters, but capitals and digits as themselves, so the matches are those of the text. Special
    tokens and byte tokens (``<0x0A>``) hold no letters of the text and separate matches.
    """
    special = set(vocabulary.all_special_ids)
    entries: list[str] = vocabulary.convert_ids_to_tokens(list(ids))
    pieces = [
        " " if token in special or _BYTE_TOKEN.fullmatch(entry) else entry
        for token, entry in zip(ids, entries, strict=True)
    ]
    ends, at = [], 0
    for piece in pieces:
        at += len(piece)
        ends.append(at)
    rare = [0.0] * len(pieces)
    index = 0
    for match in RARE.finditer("".join(pieces)):
        while ends[index] <= match.start():
            index += 1
        last = index
        while last < len(pieces) and (last == index or ends[last - 1] < match.end()):
            rare[last] = 1.0
            last += 1
    return rare
