"""What people expect beside the code, and that it says what the project says elsewhere."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_citation_has_what_its_format_requires_and_says_what_the_package_says() -> None:
    found = read("CITATION.cff")
    assert found["cff-version"] == "1.2.0"
    assert all(isinstance(found[key], str) and found[key] for key in ("message", "title"))
    assert found["authors"]
    assert all("name" in author or "family-names" in author for author in found["authors"])
    assert found["type"] == "software"
    assert (str(found["version"]), found["license"]) == (PROJECT["version"], PROJECT["license"])
    assert found["keywords"] == PROJECT["keywords"]


def test_the_contributors_page_leads_into_the_docs() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert "docs/contributing.md" in links
    assert all((ROOT / link).exists() for link in links)


def test_the_workflow_runs_what_everybody_runs() -> None:
    (job,) = read(".github/workflows/test.yml")["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"]
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
    versions = job["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    assert all(isinstance(version, str) for version in versions)  # 3.10 would be 3.1


def test_hooks_run_the_tools_of_the_environment() -> None:
    hooks = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert {hook["entry"].split()[0] for hook in hooks} == {".venv/bin/ruff", ".venv/bin/mypy"}
    assert all(hook["language"] == "system" for hook in hooks)
    # `make lint` and `make types` check the same.
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in hooks:
        command = hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude")
        assert f"$(BIN)/{command}" in recipes
