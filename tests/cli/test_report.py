"""``kvfw report`` as a user meets it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvfw.analysis.results import read_results, summarise
from kvfw.cli.main import run
from kvfw.core.contracts.records import MetricInfo, TrialKey, TrialRecord
from kvfw.store.run_folder import RunFolder

METRICS = (
    MetricInfo(name="recall", title="Found", unit="%", proportion=True, digits=1, higher_is_better=True, primary=True),
    MetricInfo(name="kv_mb", title="KV MB", unit="MB", digits=2),
)
OLD_RUN = Path(__file__).parents[1] / "data" / "run_schema_1"
SETTINGS = {
    "model": "m",
    "task": "niah",
    "question_aware": True,
    "amounts": ["ratio=4"],
    "scores": [METRICS[0].model_dump()],
}


def trials(*composes: str) -> list[TrialRecord]:
    return [
        TrialRecord(
            key=TrialKey(
                compose=compose,
                amount="ratio=1" if compose == "full" else "ratio=4",
                sample=f"1024-10-{seed}",
            ),
            group=f"1024/{seed}",
            facets={"context": 1024, "depth": 10.0, "seed": seed},
            ratio=1.0 if compose == "full" else 4.0,
            prompt_sha256="ab" * 32,
            references=("K3",),
            response="K3",
            metrics={"recall": float(seed == 0 or compose == "full"), "kv_mb": 2.0},
        )
        for compose in composes
        for seed in range(2)
    ]


def make_run(folder: Path, records: Sequence[TrialRecord], **changed: object) -> Path:
    settings = {**SETTINGS, "compose": ["snapkv", "h2o"], **changed}
    with RunFolder.open(folder, settings, resume=False) as opened:
        for record in records:
            opened.append(record)
        opened.write_text("results.json", summarise(records, settings, METRICS).to_json())
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "one", trials("full", "snapkv", "h2o"))


def test_a_run_is_reported_in_its_own_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder)]) == 0
    printed = capsys.readouterr()
    written = printed.out.splitlines()
    assert written[0] == str(folder / "report.html")
    assert str(folder / "figures" / "pareto.pdf") in written
    assert all(Path(name).stat().st_size > 0 for name in written)
    assert printed.err == ""
    # Titles come from the run's own results.
    assert "Found, %" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("markdown", ["tables.md"]),
        ("csv", ["tables.csv", "comparisons.csv"]),
        ("latex", ["tables.tex"]),
    ],
)
def test_each_format_writes_its_files(
    folder: Path, tmp_path: Path, form: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "place"
    assert run(["report", str(folder), "--format", form, "--out", str(out)]) == 0
    assert capsys.readouterr().out.split() == [str(out / name) for name in names]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)


def test_all_formats_at_once(folder: Path, tmp_path: Path) -> None:
    assert run(["report", str(folder), "--format", "all", "--out", str(tmp_path / "out")]) == 0
    assert {"report.html", "figures", "tables.md", "tables.csv", "comparisons.csv", "tables.tex"} == {
        path.name for path in (tmp_path / "out").iterdir()
    }


def test_a_run_of_schema_1_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "quick"
    shutil.copytree(OLD_RUN, folder)
    assert run(["report", str(folder), "--format", "all"]) == 0
    assert capsys.readouterr().err == ""
    text = (folder / "tables.md").read_text(encoding="utf-8")
    assert "| snapkv:0.8+ewmeans\\_pre:0.2 | ratio 4 | 3.18 | 40.0 \\[11.8, 76.9\\] | 3.318 |" in text
    assert "| snapkv:0.8+ewmeans\\_pre:0.2 | ratio 4 | 3.18 | 0 | 0 | 0 | 1 | 1 | 2/5 |" in text


def test_several_runs_go_side_by_side_into_a_folder_of_their_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "two", trials("full", "snapkv"))
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(folder), str(other), "--format", "csv"]) == 0
    text = (tmp_path / "report" / "tables.csv").read_text(encoding="utf-8")
    for row in ("full [one]", "full [two]", "snapkv [one]", "snapkv [two]", "h2o"):
        assert f"\n{row},ratio=" in text
    assert "Speeds of different runs" in capsys.readouterr().err


def test_torn_and_corrupt_lines_are_named_and_the_rest_is_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = folder / "trials.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines()
    log.write_text("\n".join([*lines[:2], '{"schema": 1, "key"', *lines[2:], lines[0][:40]]), encoding="utf-8")
    assert run(["report", str(folder), "--format", "markdown"]) == 0
    err = capsys.readouterr().err
    assert "note: trials.jsonl line 3 skipped" in err
    assert "note: trials.jsonl line 8 skipped" in err
    assert "trials.jsonl line 3 skipped" in (folder / "tables.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [None, '{"schema": 1, "rows": [', "{}"])
def test_results_that_are_missing_or_broken_are_computed_again(folder: Path, content: str | None) -> None:
    (folder / "results.json").unlink()
    if content is not None:
        (folder / "results.json").write_text(content, encoding="utf-8")
    assert run(["report", str(folder), "--format", "markdown"]) == 0
    text = (folder / "tables.md").read_text(encoding="utf-8")
    # As the settings call the scores, and the installed metrics themselves.
    assert "| Found, % |" in text
    assert "| KV MB |" in text
    assert "50.0" in text


def test_a_reference_is_found_however_it_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder), "--format", "csv", "--reference", "h2o", "--reference", " snapkv "]) == 0
    lines = (folder / "comparisons.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert {line.split(",")[3] for line in lines} == {"h2o", "snapkv"}
    assert run(["report", str(folder), "--reference", "nothing"]) == 2
    assert "reference 'nothing' is no row of the report" in capsys.readouterr().err


def test_runs_that_cannot_be_compared_are_one_clear_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "two", trials("full"), model="other", question_aware=False)
    assert run(["report", str(folder), str(other)]) == 2
    err = capsys.readouterr().err
    assert 'model: "m" in one, "other" in two' in err
    assert "question_aware: true in one, false in two" in err
    assert "Traceback" not in err


def test_no_run_no_trials_and_a_file_in_the_way_are_clear_errors(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(tmp_path / "nowhere")]) == 2
    assert "holds no run" in capsys.readouterr().err
    empty = make_run(tmp_path / "empty", [])
    assert run(["report", str(empty)]) == 2
    assert "empty holds no trial that can be read" in capsys.readouterr().err
    assert run(["report", str(folder), "--out", str(folder / "config.json")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert run(["report"]) == 2


def test_reporting_leaves_the_run_as_it_is(folder: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    results = read_results(folder / "results.json")
    assert results is not None


@pytest.mark.slow
def test_reporting_needs_no_torch(folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys, json\n"
        "from kvfw.cli.main import run\n"
        f"assert run(['report', {str(folder)!r}, '--format', 'all', '--out', {str(tmp_path / 'out')!r}]) == 0\n"
        "print(json.dumps([name for name in ('torch', 'transformers') if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
