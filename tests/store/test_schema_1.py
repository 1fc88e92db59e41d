"""A run folder written before tasks had samples: read as it is, record by record, and never gone on with."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvfw.core.contracts.records import TrialRecord
from kvfw.errors import RequestError
from kvfw.store.run_folder import RunFolder, load_run

GOLDEN = Path(__file__).parents[1] / "data" / "run_schema_1"
DEPTHS = (10.0, 30.0, 50.0, 70.0, 90.0)


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / "trials.jsonl").read_text().splitlines()]


def test_every_record_is_read_with_sample_group_and_facets() -> None:
    run = load_run(GOLDEN)
    assert not run.problems
    assert run.config.schema_version == 1
    found = [(r.key.compose, r.key.sample, r.key.turn, r.group, dict(r.facets)) for r in run.records]
    assert found == [
        (compose, f"1024-{depth:g}-0", 0, "1024/0", {"context": 1024, "depth": depth, "seed": 0})
        for depth in DEPTHS
        for compose in ("full", "snapkv:0.8+ewmeans_pre:0.2")
    ]


def test_close_depths_are_two_samples() -> None:
    first = lines()[0]
    keys = [{**first["key"], "depth": depth} for depth in (0.1234567, 0.1234568, 0.5)]
    found = [TrialRecord.model_validate_json(json.dumps({**first, "key": key})).key.sample for key in keys]
    assert found == ["1024-0.1234567-0", "1024-0.1234568-0", "1024-0.5-0"]


def test_values_are_those_of_the_file_under_todays_names() -> None:
    for record, line in zip(load_run(GOLDEN).records, lines(), strict=True):
        stored = json.loads(record.model_dump_json(by_alias=True))
        metrics = dict(line["metrics"])
        metrics["span_kept"] = metrics.pop("needle_retained")
        assert stored["metrics"] == metrics
        assert stored["references"] == [line["answer"]]
        for name in ("ratio", "prompt_sha256", "response", "reasons", "seconds", "extra", "vectors"):
            assert stored[name] == line[name]


def test_a_record_that_was_upgraded_reads_back_equal() -> None:
    record = load_run(GOLDEN).records[0]
    again = TrialRecord.model_validate_json(record.model_dump_json(by_alias=True))
    assert again == record
    assert again.schema_version == 2


@pytest.mark.parametrize(
    ("key", "value"), [("answer", None), ("key", 5), ("key", {"compose": "full"}), ("metrics", []), ("schema", 3)]
)
def test_what_is_wrong_in_an_old_record_stays_wrong(key: str, value: object) -> None:
    with pytest.raises(ValueError, match="validation error"):
        TrialRecord.model_validate_json(json.dumps({**lines()[0], key: value}))


@pytest.mark.parametrize("resume", [True, False])
def test_it_is_not_gone_on_with(tmp_path: Path, resume: bool) -> None:
    for name in ("config.json", "trials.jsonl"):
        (tmp_path / name).write_bytes((GOLDEN / name).read_bytes())
    settings = json.loads((tmp_path / "config.json").read_text())["settings"]
    with pytest.raises(RequestError, match=r"earlier kvfw \(schema 1, now 2\).*kvfw report.*choose another --out"):
        RunFolder.open(tmp_path, settings, resume=resume)
    assert (tmp_path / "trials.jsonl").read_bytes() == (GOLDEN / "trials.jsonl").read_bytes()
