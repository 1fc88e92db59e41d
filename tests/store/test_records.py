"""Records refuse what could not be trusted later, and survive JSON unchanged."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from helpers.store_examples import numbered
from kvfw.core.contracts.records import Facet, TrialKey, TrialRecord, stratum_of
from kvfw.core.contracts.task import facet_text

FIELDS = {"key": numbered(0).key, "group": "g", "ratio": 4.0, "prompt_sha256": "0" * 64, "response": "r"}


def build(**changed: object) -> TrialRecord:
    return TrialRecord.model_validate({**FIELDS, "metrics": {}, **changed})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_field_takes_nan_or_infinity(bad: float) -> None:
    for field in (
        {"metrics": {"recall": bad}},
        {"ratio": bad},
        {"seconds": {"decode": bad}},
        {"extra": {"slots": bad}},
    ):
        with pytest.raises(ValidationError, match="finite"):
            build(**field)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
def test_reading_refuses_the_tokens_that_are_not_json(token: str) -> None:
    line = numbered(0).model_dump_json(by_alias=True).replace("0.25", token)
    assert token in line
    with pytest.raises(ValidationError):
        TrialRecord.model_validate_json(line)


def test_a_null_needs_a_reason_and_a_reason_a_null() -> None:
    with pytest.raises(ValidationError, match="null without a reason: recall"):
        build(metrics={"recall": None})
    with pytest.raises(ValidationError, match="no null metric of that name: recall"):
        build(metrics={"recall": 1.0}, reasons={"recall": "because"})
    with pytest.raises(ValidationError, match="at least 1 character"):
        build(metrics={"recall": None}, reasons={"recall": ""})


@pytest.mark.parametrize(
    "changed",
    [
        {"unknown": 1},
        {"prompt_sha256": "abc"},
        {"ratio": 0.0},
        {"seconds": {"decode": -1.0}},
        {"metrics": {"recall": True}},
        {"metrics": {"recall": "1"}},
        {"response": "\ud800"},
        {"schema": 3},
        {"group": ""},
        {"facets": {"depth": math.nan}},
        {"facets": {"depth": None}},
    ],
)
def test_wrong_fields_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        build(**changed)


def test_records_sort_with_full_first_then_by_row_facets_and_turn() -> None:
    def made(compose: str, context: object, depth: float, turn: int = 0) -> TrialRecord:
        key = TrialKey(compose=compose, amount="ratio=4", sample=f"{context}-{depth:g}", turn=turn)
        return build(key=key, facets={"context": context, "depth": depth})

    rows = [
        made("full", 2048, 10.0),
        made("apart", 1024, 90.0),
        made("apart", 1024, 90.0, 1),
        made("apart", 2048, 10.0),
    ]
    rows.append(made("apart", "long", 10.0))
    shuffled = [rows[i] for i in (3, 0, 4, 2, 1)]
    assert sorted(shuffled, key=lambda record: record.order) == rows


def test_a_key_hashes_and_reads_well() -> None:
    key = TrialKey(compose="apart", amount="ratio=4", sample="1024-10-1")
    second = key.model_copy(update={"turn": 1})
    assert len({key, key.model_copy(), second}) == 2
    assert str(key) == "apart ratio=4 on sample 1024-10-1"
    assert str(second) == "apart ratio=4 on sample 1024-10-1, question 2"
    assert (second.row, second.prompt) == (("apart", "ratio=4"), ("1024-10-1", 1))


def test_a_stratum_is_all_of_a_group_before_its_last_slash() -> None:
    assert [stratum_of(group) for group in ("1024/0", "en/1024/3", "alone")] == ["1024", "en/1024", ""]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10.0, "10"),
        (12.5, "12.5"),
        (0, "0"),
        (33.3, "33.3"),
        ("who", "who"),
        ("v2.0", "v2.0"),
        (0.1234567, "0.1234567"),
    ],
)
def test_facets_are_written_without_needless_decimals(value: Facet, text: str) -> None:
    assert facet_text(value) == text


def test_records_and_keys_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        numbered(0).response = "other"  # type: ignore[misc]


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    text=st.text(),
    metrics=st.dictionaries(st.text(min_size=1), st.one_of(st.none(), finite), max_size=5),
)
def test_a_record_survives_strict_json(text: str, metrics: dict[str, float | None]) -> None:
    reasons = {name: "not measured" for name, value in metrics.items() if value is None}
    record = build(response=text, metrics=metrics, reasons=reasons)
    line = record.model_dump_json(by_alias=True)

    def refuse(token: str) -> None:
        raise AssertionError(token)

    assert json.loads(line, parse_constant=refuse)["schema"] == 2
    assert TrialRecord.model_validate_json(line) == record
