"""Haystacks: reads a text, cuts a number of tokens out of it, finds places between its words."""

import heapq
import math
import random
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

from kvfw.core.contracts.task import Tokenizer
from kvfw.errors import PromptError
from kvfw.tasks.prompting import decoded

#: Characters encoded per token needed. English text has four to five; a slice that is too short is doubled.
CHARS_PER_TOKEN = 8
#: Draws after which a cut in the middle of a word is accepted. Three in four cuts are clean at once.
CLEAN_DRAWS = 24
#: The needle moves to the start of a sentence at most this many tokens from its depth.
SENTENCE_TOLERANCE_TOKENS = 8
#: Otherwise it moves to the start of a word at most this many tokens from its depth.
WORD_TOLERANCE_TOKENS = 32
#: Tokens decoded to see the text before a place: enough for a closing quote and a full stop in bytes.
LOOK_BACK_TOKENS = 8
#: A text with fewer paragraphs (or sentences) than this is cut at sentences (or words) instead.
ENOUGH_STARTS = 16

PARAGRAPH = re.compile(r"\n\s*(?=\S)")
SENTENCE = re.compile(r"(?<=[.!?…])\s+(?=\S)|(?<=[。！？])(?=\S)")
WORD = re.compile(r"\s+(?=\S)")
SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)\]]*\s*$")
#: Scripts without spaces still have punctuation; a place after it breaks no word.
UNSPACED_END = re.compile(r"[。！？，、；：][”’」』]*$")


def read(path: Path | None) -> str:
    """The haystack text: a UTF-8 file or, for None, the shipped text.

    That is Melville's *Moby-Dick* (1851, public domain), one paragraph per line, about 1.2 million characters.

    Raises:
        PromptError: the file cannot be read, is not UTF-8, or holds no text.
    """
    if path is None:
        return shipped()
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise PromptError(
            f"haystack {path} cannot be read: {reason}. Name a readable text file, or leave the "
            f"option out for the shipped text."
        ) from error
    except UnicodeDecodeError as error:
        raise PromptError(
            f"haystack {path} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}. Save it as UTF-8."
        ) from error
    if not text.strip():
        raise PromptError(f"haystack {path} holds no text. Name a file that does.")
    return normalised(text)


@cache
def shipped() -> str:
    """The text shipped with the package."""
    return normalised((files("kvfw.tasks") / "data" / "moby-dick.txt").read_text("utf-8"))


def normalised(text: str) -> str:
    """``text`` with ``\\n`` line ends and a paragraph break in front, so that its start is a place to cut."""
    return "\n\n" + text.replace("\r\n", "\n").replace("\r", "\n").strip()


def cut(tokenizer: Tokenizer, text: str, tokens: int, rng: random.Random, source: str) -> tuple[int, ...]:
    """Ids of exactly ``tokens`` (1 or more) consecutive tokens of ``text``, from a random start, never wrapping around.

    The cut begins at the white space before a paragraph (or, in a text with few of them, before a sentence or a word)
    and, if a few draws find such a place, ends where a word ends. Only a slice of the text is encoded.

    Args:
        tokenizer: the model's own.
        text: as :func:`read` returns it.
        tokens: number of tokens to cut.
        rng: draws the start.
        source: name of the text for messages.

    Raises:
        PromptError: the whole text has fewer tokens; the message counts them.
    """
    places = starts(text)
    usable = len(places)
    longest: tuple[int, ...] | None = None
    for _ in range(CLEAN_DRAWS):
        # A start too close to the end rules out all later ones, so the range narrows until a start has room.
        while True:
            drawn = rng.randrange(usable)
            ids = encoded_from(tokenizer, text, places[drawn], tokens + 1)
            if len(ids) >= tokens:
                break
            if drawn == 0:
                raise PromptError(
                    f"haystack {source} has {len(ids)} tokens and {tokens} are needed. It is never repeated: "
                    f"give a longer text or a shorter context."
                )
            usable = drawn
        longest = tuple(ids[:tokens])
        if len(ids) == tokens or starts_word(tokenizer, ids, tokens):
            break
    assert longest is not None
    return longest


def starts(text: str) -> list[int]:
    """Character positions where a cut may begin, ascending; the first is 0."""
    for pattern in (PARAGRAPH, SENTENCE, WORD):
        found = [match.start() for match in pattern.finditer(text)]
        if len(found) >= ENOUGH_STARTS:
            break
    return found if found[:1] == [0] else [0, *found]


def encoded_from(tokenizer: Tokenizer, text: str, start: int, tokens: int) -> list[int]:
    """Ids of ``text[start:]``: at least ``tokens`` of them, or all if there are fewer."""
    # The last few tokens of a slice may differ from those of the whole text, so they are never used.
    spare = 8
    length = CHARS_PER_TOKEN * (tokens + spare)
    while start + length < len(text):
        ids = tokenizer.encode(text[start : start + length], add_special_tokens=False)
        if len(ids) >= tokens + spare:
            return ids[:-spare]
        length *= 2
    return tokenizer.encode(text[start:], add_special_tokens=False)


def place(tokenizer: Tokenizer, ids: tuple[int, ...], depth_percent: float) -> int:
    """Index in ``ids``, 0 to ``len(ids)``, where a sentence can be inserted without breaking a word.

    The nearest start of a sentence within ``SENTENCE_TOLERANCE_TOKENS`` of the depth, else the nearest start of a word;
    both ends of the text count as either. Ties go to the front. A greater depth never gives an earlier place.

    Raises:
        PromptError: no word starts within ``WORD_TOLERANCE_TOKENS`` of the depth.
    """
    count = len(ids)
    listed = list(ids)
    wanted = depth_percent / 100 * count
    word: int | None = None
    for index in outwards(wanted, count):
        distance_tokens = abs(index - wanted)
        if distance_tokens > (WORD_TOLERANCE_TOKENS if word is None else SENTENCE_TOLERANCE_TOKENS):
            break
        at_end = index in (0, count)
        if not at_end and not starts_word(tokenizer, listed, index):
            continue
        word = index if word is None else word
        sentence = at_end or starts_sentence(tokenizer, listed, index)
        if sentence and distance_tokens <= SENTENCE_TOLERANCE_TOKENS:
            return index
    if word is None:
        raise PromptError(
            f"no word of the haystack starts within {WORD_TOLERANCE_TOKENS} tokens of depth "
            f"{depth_percent:g} percent, and the needle must not break one. Use a text with spaces, or "
            f"another depth or seed."
        )
    return word


def outwards(wanted: float, count: int) -> Iterator[int]:
    """All of 0 to ``count``, the nearest to ``wanted`` first, ties to the lower."""
    middle = math.floor(wanted)
    return heapq.merge(range(middle, -1, -1), range(middle + 1, count + 1), key=lambda index: abs(index - wanted))


def starts_word(tokenizer: Tokenizer, ids: list[int], index: int) -> bool:
    """Whether token ``index``, 1 or more, starts with a space or follows punctuation of an unspaced script."""
    # Some tokenizers show a token's leading space only after another token, and a character may take several tokens,
    # so two decoded texts are compared.
    first = max(0, index - LOOK_BACK_TOKENS)
    before = decoded(tokenizer, ids[first:index])
    both = decoded(tokenizer, ids[first : index + 1])
    if not both.startswith(before) or len(both) == len(before):
        return False
    return both[len(before)].isspace() or UNSPACED_END.search(before) is not None


def starts_sentence(tokenizer: Tokenizer, ids: list[int], index: int) -> bool:
    """Whether the text before token ``index`` ends a sentence."""
    return SENTENCE_END.search(decoded(tokenizer, ids[max(0, index - LOOK_BACK_TOKENS) : index])) is not None
