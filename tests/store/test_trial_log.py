"""Lines of trials.jsonl: what a reader makes of damage, and what a writer leaves behind."""

import errno
import os
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.store_examples import numbered, seeds
from kvfw.errors import StoreError
from kvfw.store.trials import TORN_NAME, TrialLog, decode_lines, encode, mend_tail, read_trials

WHOLE = b"".join(encode(numbered(number, "two\nlines \u2028 and \x85 more")) for number in range(3))
ENDS = [at + 1 for at, byte in enumerate(WHOLE) if byte == ord("\n")]


def test_a_record_is_one_line_whatever_its_text() -> None:
    assert len(ENDS) == 3
    records, problems = decode_lines(WHOLE)
    assert seeds(records) == [0, 1, 2]
    assert not problems


@given(cut=st.integers(0, len(WHOLE)))
def test_cut_anywhere_only_the_cut_line_is_lost(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cut") / "trials.jsonl"
    path.write_bytes(WHOLE[:cut])
    # A line whose newline alone is missing is whole.
    whole = sum(end - 1 <= cut for end in ENDS)
    torn = cut not in (0, *ENDS, *(end - 1 for end in ENDS))
    problems = mend_tail(path)
    assert len(problems) == torn
    assert path.with_name(TORN_NAME).exists() == torn
    with closing(TrialLog(path)) as log:
        log.append(numbered(9))
    records, remaining = read_trials(path)
    assert seeds(records) == [*range(whole), 9]
    assert not remaining


def test_the_torn_line_is_named_and_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_bytes(WHOLE[: ENDS[1] + 20])
    (problem,) = mend_tail(path)
    assert problem.startswith("trials.jsonl line 3 was torn by an interrupted write (20 bytes)")
    assert (tmp_path / TORN_NAME).read_bytes() == WHOLE[ENDS[1] : ENDS[1] + 20] + b"\n"
    assert mend_tail(path) == ()


def test_bad_lines_are_skipped_by_number_and_reason() -> None:
    first, second = encode(numbered(1)), encode(numbered(2, "other response"))
    again = encode(numbered(1, "later response"))
    data = first + b"{broken\n" + b"\xff\xfe\n" + b"\0\0\0\n" + b"\n" + again + b'{"schema": 2}\n' + second
    records, problems = decode_lines(data)
    assert seeds(records) == [1, 2]
    assert records[0].response == "the code is K3Q9"
    assert [problem.split(" skipped: ")[0] for problem in problems] == [
        f"trials.jsonl line {line}" for line in (2, 3, 4, 6, 7)
    ]
    assert "repeats line 1 (snapkv ratio=4 on sample 1024-50-1)" in problems[3]
    assert problems[4].endswith("key: Field required")
    assert all("\n" not in problem for problem in problems)


def test_a_full_disk_is_explained_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trials.jsonl"
    with closing(TrialLog(path)) as log:
        log.append(numbered(0))

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("kvfw.store.trials.os.fsync", full)
        with pytest.raises(StoreError, match=r"No space left on device.*before are safe.*--resume"):
            log.append(numbered(1))
        monkeypatch.undo()
        log.append(numbered(2))
    records, problems = read_trials(path)
    assert seeds(records) == [0, 2]
    assert not problems


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_write_cut_short_by_the_system_is_taken_back(tmp_path: Path) -> None:
    """A file size limit makes the system write a part of a line for real, as a full disk does."""
    path = tmp_path / "trials.jsonl"
    script = """
        import resource, signal, sys
        from pathlib import Path
        from helpers.store_examples import numbered
        from kvfw.errors import StoreError
        from kvfw.store.trials import TrialLog

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        log = TrialLog(Path(sys.argv[1]))
        try:
            for number in range(100):
                log.append(numbered(number))
        except StoreError as error:
            print(error)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert "File too large" in ran.stdout
    data = path.read_bytes()
    assert 0 < len(data) <= 1000
    assert data.endswith(b"\n")
    assert not decode_lines(data)[1]
