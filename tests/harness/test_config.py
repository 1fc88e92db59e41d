"""What lm-eval hands over becomes settings, or one clear error."""

from typing import Any

import pytest

from kvfw.errors import OptionError
from kvfw.harness.config import HarnessConfig


def test_the_names_of_lm_eval_become_settings() -> None:
    given = {"pretrained": "owner/model", "compose": "kvzip@global", "ratio": 4, "batch_size": "1", "max_batch_size": 8}
    found = HarnessConfig.of(given)
    assert (found.model, found.compose, [str(amount) for amount in found.amounts()]) == (
        "owner/model",
        ("kvzip@global",),
        ["ratio=4"],
    )


def test_numbers_arrive_as_lm_eval_reads_them() -> None:
    assert [str(amount) for amount in HarnessConfig.of({"keep": 0.1}).amounts()] == ["keep=0.1"]
    assert [str(amount) for amount in HarnessConfig.of({"ratio": "5/2"}).amounts()] == ["ratio=2.5"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ratoi": 4}, "unknown setting 'ratoi'; known: compose, ratio"),
        ({"ratio": 4, "slots": 256}, "the amount ratio=4 and slots=256; one lm-eval run has"),
        ({"compose": ["snapkv", "h2o"]}, "compose is snapkv and h2o, .*; one lm-eval run has"),
        ({"batch_size": "auto"}, "batch_size is 'auto'; kvfw compresses one context at a time"),
        ({"batch_size": 8}, "batch_size is 8"),
        ({"compress_every": 64}, "compress_every is 64; in lm-eval only contexts are compressed"),
        # What is left of snapkv(window=16,kernel=3) where a text is cut at every comma.
        (
            {"compose": "snapkv(window=16", "kernel": "3)"},
            r"compose arrived as 'snapkv\(window=16', .* not closed: quote",
        ),
        ({"compose": "[0-1", "4]full;[2-3]snapkv": ""}, "a bracket that is not closed"),
        ({"max_length": 0}, "max_length is 0"),
    ],
)
def test_a_wrong_request_is_one_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        HarnessConfig.of(given)
