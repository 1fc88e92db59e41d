"""Sketches of texts, by which it shows that two texts share passages."""

import hashlib
import re

#: Words of a passage: in English, two authors hardly ever write the same eight words in a row.
WORDS = 8
#: One passage in this many is kept, chosen by its hash, so that the same ones are kept of every text.
KEPT = 4
#: Texts that share more of the smaller one's passages than this are not independent.
ALLOWED = 0.02


def sketch(text: str) -> frozenset[int]:
    """Hashes of the text's passages of ``WORDS`` words, without case and punctuation, one in ``KEPT`` of them."""
    words = re.findall(r"\w+", text.lower())
    passages = {" ".join(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)}
    digests = (hashlib.blake2b(each.encode(), digest_size=8).digest() for each in passages)
    hashes = (int.from_bytes(each, "big", signed=True) for each in digests)
    return frozenset(each for each in hashes if each % KEPT == 0)


def shared(first: frozenset[int], second: frozenset[int]) -> float:
    """Share of the smaller sketch that is in the other too; 0 if one is empty."""
    least = min(len(first), len(second))
    return len(first & second) / least if least else 0.0
