"""Which tokens look rare."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfw.core.state.lexical import RARE, rare_tokens


class Pieces:
    """A vocabulary whose ids are indices into a list of entries."""

    def __init__(self, entries: list[str], special: tuple[int, ...] = ()) -> None:
        self.entries, self.all_special_ids = entries, list(special)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.entries[i] for i in ids]


def rare(entries: list[str], special: tuple[int, ...] = ()) -> list[float]:
    return rare_tokens(Pieces(entries, special), range(len(entries)))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["The", "Ġcode", "Ġis", "ĠA", "7", "K", "2", "-", "9", "."], [0, 0, 0, 1, 1, 1, 1, 0, 1, 0]),
        (["A", "ĠB"], [0, 0]),  # a space parts them: single capitals are not rare
        (["A", "B"], [1, 1]),
        (["▁NASA", "▁flew"], [1, 0]),
        (["xA", "By"], [1, 1]),  # any overlap counts
        (["A", "<0x0A>", "B"], [0, 0, 0]),  # a byte token is no text with digits
        (["A", "", "B"], [1, 1, 1]),
        ([], []),
    ],
)
def test_examples(entries: list[str], expected: list[float]) -> None:
    assert rare(entries) == expected


def test_special_tokens_are_not_text_and_part_matches() -> None:
    assert rare(["[INST]", "A", "[END]", "B"], special=(0, 2)) == [0, 0, 0, 0]


@given(st.lists(st.text(alphabet="AB1xĠ-", min_size=1, max_size=4), max_size=12))
def test_a_token_is_rare_exactly_if_some_match_overlaps_it(entries: list[str]) -> None:
    text = "".join(entries)
    spans = [m.span() for m in re.finditer(RARE, text)]
    at, expected = 0, []
    for entry in entries:
        stop = at + len(entry)
        expected.append(float(any(a < stop and at < b for a, b in spans)))
        at = stop
    assert rare(entries) == expected
