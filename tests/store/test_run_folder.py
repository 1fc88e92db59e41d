"""Opening, resuming and refusing run folders."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from helpers.store_examples import SETTINGS, numbered, seeds
from kvfw.errors import RequestError, StoreError
from kvfw.store.run_folder import RunFolder, load_run


def test_a_new_folder_gets_its_configuration(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "a" / "b", SETTINGS, resume=False, facts={"python": "3.11"}) as run:
        run.append(numbered(0))
        run.add_facts({"rope": {"layers": [1, 2]}})
    stored = json.loads((tmp_path / "a" / "b" / "config.json").read_text())
    assert stored == {
        "schema": 2,
        "settings": SETTINGS,
        "facts": {"python": "3.11", "rope": {"layers": [1, 2]}},
        "resumed": [],
    }
    loaded = load_run(tmp_path / "a" / "b")
    assert loaded.config.settings == SETTINGS
    assert seeds(loaded.records) == [0]
    assert not loaded.problems


def test_resume_needs_to_be_asked_for_and_keeps_what_is_there(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, SETTINGS, resume=True, facts={"cpu": "one"}) as run:
        run.append(numbered(0))
    with pytest.raises(RequestError, match="already holds this experiment; add --resume to finish it or choose"):
        RunFolder.open(tmp_path, SETTINGS, resume=False)
    with RunFolder.open(tmp_path, SETTINGS, resume=True, facts={"cpu": "two"}) as run:
        run.append(numbered(1))
        records, problems = run.records()
    assert seeds(records) == [0, 1]
    assert not problems
    assert run.config.facts == {"cpu": "one"}
    assert run.config.resumed == ({"cpu": "two"},)


@pytest.mark.parametrize("resume", [True, False])
def test_other_settings_are_refused_one_by_one(tmp_path: Path, resume: bool) -> None:
    RunFolder.open(tmp_path, {**SETTINGS, "old": True, "same": 4}, resume=False).close()
    asked = {**SETTINGS, "sinks": 8, "decoding": {"max_new_tokens": 8}, "old": 1, "new": None, "same": 4.0}
    with pytest.raises(RequestError) as caught:
        RunFolder.open(tmp_path, asked, resume=resume)
    assert str(caught.value).splitlines()[1:] == [
        "  sinks: 4 there, 8 asked",
        "  decoding.max_new_tokens: 24 there, 8 asked",
        "  old: true there, 1 asked",
        "  new: nothing there, null asked",
    ]


def test_tuples_and_lists_are_the_same_setting(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, {"contexts": (1024, 2048)}, resume=False).close()
    RunFolder.open(tmp_path, {"contexts": [1024, 2048]}, resume=True).close()


def test_a_folder_of_something_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RequestError, match=r"not empty and holds no run \(thesis.tex is there"):
        RunFolder.open(tmp_path, SETTINGS, resume=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RequestError, match="is a file"):
        RunFolder.open(tmp_path / "thesis.tex", SETTINGS, resume=False)
    with pytest.raises(RequestError, match="holds no run"):
        load_run(tmp_path)
    with pytest.raises(RequestError, match="holds no run"):
        load_run(tmp_path / "missing")


def test_a_folder_left_by_a_kill_before_the_configuration_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / ".kvfw.lock").write_text("")
    leftover = tmp_path / ".config.json.17.kvfw-tmp"
    leftover.write_text("{")
    RunFolder.open(tmp_path, SETTINGS, resume=False).close()
    assert not leftover.exists()


def test_settings_that_are_not_json_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    for bad in (float("nan"), {1, 2}):
        with pytest.raises(RequestError, match="plain JSON"):
            RunFolder.open(tmp_path / "run", {"bad": bad}, resume=False)
    assert not (tmp_path / "run").exists()


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"schema": 1}')
    with pytest.raises(StoreError, match=r"config\.json is no run configuration: settings: Field required"):
        RunFolder.open(tmp_path, SETTINGS, resume=True)


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot (make|read)"):
        RunFolder.open(tmp_path / "file" / "run", SETTINGS, resume=False)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, SETTINGS, resume=False):
        with pytest.raises(RequestError, match="another process is writing"):
            RunFolder.open(tmp_path, SETTINGS, resume=True)
        held = subprocess.run([*writer(tmp_path), "0"], capture_output=True, text=True, check=False)
        assert "another process is writing" in held.stderr
    RunFolder.open(tmp_path, SETTINGS, resume=True).close()


def test_reading_does_not_disturb_a_writer(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, SETTINGS, resume=False) as run:
        run.append(numbered(0))
        assert seeds(load_run(tmp_path).records) == [0]
        run.append(numbered(1))


def test_a_torn_line_is_reported_with_the_records(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, SETTINGS, resume=False) as run:
        run.append(numbered(0))
        run.append(numbered(0, "again"))
    with (tmp_path / "trials.jsonl").open("ab") as file:
        file.write(b'{"schema":1,"key":')
    with RunFolder.open(tmp_path, SETTINGS, resume=True) as run:
        run.append(numbered(1))
        records, problems = run.records()
    assert seeds(records) == [0, 1]
    assert [problem.split(": ")[0].split(" (")[0] for problem in problems] == [
        "trials.jsonl line 3 was torn by an interrupted write",
        "trials.jsonl line 2 skipped",
    ]


def test_files_are_replaced_whole_and_stay_inside(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, SETTINGS, resume=False) as run:
        assert run.write_text("figures/a.svg", "old") == tmp_path / "figures" / "a.svg"
        run.write_text("figures/a.svg", "ü")
        for name in ("../a", "/a", ""):
            with pytest.raises(ValueError, match="inside the run folder"):
                run.write_text(name, "")
    assert (tmp_path / "figures" / "a.svg").read_bytes() == "ü".encode()
    assert not list(tmp_path.rglob("*.kvfw-tmp"))


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.open(tmp_path, SETTINGS, resume=False) as run:
        run.write_text("samples.md", "old")

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"samples\.md: No space left on device"):
            run.write_text("samples.md", "new")
    assert (tmp_path / "samples.md").read_text() == "old"
    assert not list(tmp_path.rglob("*.kvfw-tmp"))


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_a_kill_at_any_moment_loses_at_most_the_trial_being_written(tmp_path: Path) -> None:
    random_wait = random.Random(20260101)
    done = 0
    for _ in range(5):
        process = subprocess.Popen(
            [*writer(tmp_path), str(done)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        assert first, process.stderr.read()
        time.sleep(random_wait.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        # Not communicate(): it passes over what readline() has read ahead, many lines on a busy machine.
        acknowledged = [int(line) for line in [first, *process.stdout] if line.strip()]
        process.communicate()
        with RunFolder.open(tmp_path, SETTINGS, resume=True) as run:
            records, _ = run.records()
        assert acknowledged == list(range(done, acknowledged[-1] + 1))
        assert seeds(records) == list(range(len(records)))
        # One more than acknowledged: written, but killed before it could say so.
        assert len(records) in (acknowledged[-1] + 1, acknowledged[-1] + 2)
        done = len(records)


def writer(folder: Path) -> list[str]:
    """A command that appends records of growing seed, from a given one on, until it is killed."""
    script = """
        import itertools, sys
        sys.path.insert(0, sys.argv[2])
        from helpers.store_examples import SETTINGS, numbered
        from kvfw.store.run_folder import RunFolder

        with RunFolder.open(sys.argv[1], SETTINGS, resume=True) as run:
            for number in itertools.count(int(sys.argv[3])):
                run.append(numbered(number, "x" * (number * 7919 % 50_000)))
                print(number, flush=True)
    """
    return [sys.executable, "-c", textwrap.dedent(script), str(folder), str(Path(__file__).parents[1])]
