"""Marks tokens by their text: rare ones (codes, numbers, acronyms) and their type. No text is encoded again."""

import re
import unicodedata
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol, runtime_checkable

#: Runs of at least two capitals or digits, and every single digit.
RARE = re.compile(r"[A-Z0-9]{2,}|\d")
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


#: Characters by which byte-level and SentencePiece vocabularies spell white space.
_SPACE_MARKS = "\u0120\u2581\u010a"


class TokenType(IntEnum):
    """The class of a token."""

    TEXT = 0
    IMAGE = 1
    SPECIAL = 2
    PUNCTUATION = 3


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


def token_types(vocabulary: Vocabulary, ids: Sequence[int]) -> list[TokenType]:
    """The class of every token: special tokens as the tokenizer lists them, punctuation by Unicode, text otherwise.

    A token is punctuation if it has no other characters than punctuation, symbols and white space. Image tokens are
    special tokens with "image" in their name; kvfw's prompts are text only.
    """
    special = set(vocabulary.all_special_ids)
    entries: list[str] = vocabulary.convert_ids_to_tokens(list(ids))
    return [_type(entry, token in special) for token, entry in zip(ids, entries, strict=True)]


def _type(entry: str, special: bool) -> TokenType:
    if special:
        return TokenType.IMAGE if "image" in entry else TokenType.SPECIAL
    visible = entry.strip(_SPACE_MARKS).strip()
    marks = visible and not _BYTE_TOKEN.fullmatch(entry) and all(unicodedata.category(c)[0] in "PS" for c in visible)
    return TokenType.PUNCTUATION if marks else TokenType.TEXT
