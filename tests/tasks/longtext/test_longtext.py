"""The windows of a long text and what follows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfw.errors import PromptError
from kvfw.tasks.longtext.longtext import BREAK, STARTED_TOKENS, Longtext
from kvfw.verify.instruments.tokenizer import SuiteTokenizer


def test_a_window_is_exactly_as_long_as_asked_and_the_text_goes_on_in_what_follows() -> None:
    tokenizer = SuiteTokenizer()
    samples = list(Longtext(contexts=(200,), follow=64, windows=3).samples(tokenizer))
    for sample in samples:
        assert (len(sample.context_ids), len(sample.turns[0].follow_ids)) == (200, 64)
        assert sample.context_ids[0] in tokenizer.all_special_ids
    assert len({sample.context_ids for sample in samples}) == 3
    text = tokenizer.decode([*samples[1].context_ids[1:], *samples[1].turns[0].follow_ids])
    from kvfw.tasks import haystack

    assert text in haystack.shipped()


def test_the_copy_repeats_the_passage_token_by_token() -> None:
    tokenizer = SuiteTokenizer()
    (sample,) = Longtext(contexts=(200,), follow=512, windows=1, copy_passage=True).samples(tokenizer)
    between = len(tokenizer.encode(BREAK, add_special_tokens=False))
    passage = sample.context_ids[1 : 200 - STARTED_TOKENS - between]
    assert len(sample.context_ids) == 200
    assert sample.context_ids[-STARTED_TOKENS:] + sample.turns[0].follow_ids == passage


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Longtext(contexts=()), "contexts"),
        (Longtext(contexts=(40,), copy_passage=True), "at least 64"),
        (Longtext(haystack=Path("nowhere.txt")), "nowhere.txt"),
    ],
)
def test_impossible_options_are_refused(task: Longtext, says: str) -> None:
    with pytest.raises(PromptError, match=says):
        task.check()


def test_a_text_that_is_too_short_is_named_with_its_tokens(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("A short text. " * 10)
    with pytest.raises(PromptError, match=r"short\.txt has \d+ tokens after the start of window 0 and 711"):
        list(Longtext(contexts=(200,), follow=512, windows=1, haystack=short).samples(SuiteTokenizer()))
