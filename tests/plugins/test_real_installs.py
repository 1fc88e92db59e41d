"""kvfw and its example plugins, installed by pip into a fresh environment beside a broken plugin, and used there."""

import json
from pathlib import Path

import pytest

from helpers.installs import PLUGINS, Installed, install, wheelhouse

pytestmark = pytest.mark.real

SMALL = ["--preset", "quick", "--contexts", "512", "--depths", "50", "--max-new-tokens", "8", "--json"]
HYBRIDS = [
    "key_norm:0.5+ewmeans_pre(weight=key_norm):0.5",
    "snapkv:0.5+merge(merger=segments(cut=weight),space=slow(wavelength=200),weight=key_norm):0.5",
]
BROKEN = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "kvfw-broken"
version = "9.9"
[project.entry-points.kvfw]
broken = "kvfw_broken"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installs")
    broken = folder / "kvfw-broken"
    (broken / "kvfw_broken").mkdir(parents=True)
    (broken / "pyproject.toml").write_text(BROKEN)
    (broken / "kvfw_broken" / "__init__.py").write_text("import no_such_module\n")
    return install(folder, wheelhouse(), broken)


def test_it_is_the_installed_kvfw_that_runs(installed: Installed) -> None:
    done = installed.run("-c", "import kvfw, kvfw_pairs; print(kvfw.__file__); print(kvfw_pairs.__file__)")
    environment = installed.python.parents[1]
    assert [Path(line).is_relative_to(environment) for line in done.stdout.splitlines()] == [True, True]


def test_parts_of_plugins_are_listed_and_a_broken_one_is_named_once(installed: Installed) -> None:
    done = installed.kvfw("list", "scorers")
    assert done.returncode == 0
    assert "key_norm" in done.stdout
    warnings = [line for line in done.stderr.splitlines() if line]
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: plugin 'broken' of kvfw-broken 9.9: cannot be loaded from 'kvfw_broken'")
    assert "no_such_module" in warnings[0]


def test_list_plugins_shows_all_with_their_versions(installed: Installed) -> None:
    done = installed.kvfw("list", "plugins")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.split("\n\n")[0].splitlines()}
    assert (rows["keynorm"][:2], rows["keynorm"][-1]) == (["kvfw-keynorm", "0.1.0"], "ok")
    assert (rows["pairs"][:2], rows["pairs"][-1]) == (["kvfw-pairs", "0.1.0"], "ok")
    assert (rows["segments"][:2], rows["segments"][-1]) == (["kvfw-segments", "0.1.0"], "ok")
    assert (rows["broken"][:2], rows["broken"][-1]) == (["kvfw-broken", "9.9"], "problem")
    assert rows["kvfw"][-1] == "ok"
    assert "no_such_module" in done.stdout


def test_a_variable_leaves_plugins_out(installed: Installed) -> None:
    done = installed.kvfw("list", "mergers", KVFW_PLUGINS="keynorm")
    assert "segments" not in done.stdout
    assert done.stderr == ""
    rows = installed.kvfw("list", "plugins", KVFW_PLUGINS="keynorm,pears").stdout.splitlines()
    assert [row.split()[0] for row in rows if row.endswith("not loaded: left out of KVFW_PLUGINS")] == [
        "broken",
        "pairs",
        "segments",
    ]
    assert "names the plugin 'pears', which is not installed. Did you mean pairs?" in rows[-1]


def test_hybrids_of_plugin_parts_are_evaluated(installed: Installed, tmp_path: Path) -> None:
    compose = [item for text in HYBRIDS for item in ("--compose", text)]
    done = installed.kvfw("eval", *compose, *SMALL, "--out", str(tmp_path / "run"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["compose"]: row for row in json.loads(done.stdout)["rows"]}
    assert list(rows) == ["full", *HYBRIDS]
    assert rows["full"]["metrics"]["same_start"]["mean"] == 1.0
    for text in HYBRIDS:
        assert 0 < rows[text]["metrics"]["same_start"]["mean"] <= 1.0
        assert rows[text]["metrics"]["kv_mb"]["mean"] < rows["full"]["metrics"]["kv_mb"]["mean"]
    facts = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))["facts"]
    assert facts["plugins"]["keynorm"] == {"distribution": "kvfw-keynorm", "version": "0.1.0"}
    assert sorted(facts["plugins"]) == ["keynorm", "kvfw", "pairs", "segments"]
    assert "Same start" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_a_task_of_a_plugin_is_evaluated(installed: Installed, tmp_path: Path) -> None:
    options = ["--task", "pairs", "--compose", "key_norm", "--out", str(tmp_path / "run")]
    done = installed.kvfw("eval", *options, *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["config"]["task"].startswith("pairs(contexts=[")
    assert [row["compose"] for row in found["rows"]] == ["full", "key_norm"]
    record = json.loads((tmp_path / "run" / "trials.jsonl").read_text("utf-8").splitlines()[0])
    assert record["references"][0].isdigit()
    assert record["metrics"]["recall"] in (0.0, 1.0)


def test_parts_of_plugins_can_be_verified(installed: Installed) -> None:
    # One of them: tests/plugins/test_example_plugin.py verifies them all.
    done = installed.kvfw("verify", "key_norm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout


def test_each_plugins_own_tests_pass(installed: Installed) -> None:
    folders = [str(installed.sources / "plugins" / name / "tests") for name in PLUGINS]
    done = installed.run("-m", "pytest", "-q", "--rootdir", str(installed.sources / "plugins"), *folders)
    assert done.returncode == 0, done.stdout
