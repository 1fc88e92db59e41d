"""How alike two texts are: shared words, longest common subsequence, edit similarity."""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> list[str]:
    """Words in lower case, without punctuation and English articles, as SQuAD compares them."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def f1(response: str, reference: str) -> float:
    """F1 of the normalised words, each counted as often as it occurs in both."""
    said, wanted = normalised(response), normalised(reference)
    return _harmonic((Counter(said) & Counter(wanted)).total(), len(said), len(wanted))


def rouge_l(response: str, reference: str) -> float:
    """ROUGE-L: F1 of the longest common subsequence of lower-case words and numbers (Lin 2004)."""
    said, wanted = (re.findall(r"\w+", text.lower()) for text in (response, reference))
    return _harmonic(common(said, wanted), len(said), len(wanted))


def edit_similarity(response: str, reference: str) -> float:
    """Twice the longest common subsequence of characters over both lengths; 1 for equal texts."""
    return _harmonic(common(response, reference), len(response), len(reference))


def common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, in ``len(a) len(b)`` steps."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def _harmonic(shared: int, one: int, other: int) -> float:
    """Harmonic mean of shared/one and shared/other; 0 if nothing is shared."""
    return 2 * shared / (one + other) if shared else 0.0
