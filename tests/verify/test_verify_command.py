"""``kvfw verify``: what it prints and how it ends."""

import json

import pytest

from helpers.broken_parts import broken_registry
from kvfw.cli.main import run
from kvfw.core.registry import registry as registry_module


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "default_registry", broken_registry)


def test_a_sound_part_ends_with_0_and_a_line_per_property(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "topk", "--kind", "selector"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("[1/37] topk: loads\n[2/37] topk: contract\n")
    assert out.startswith("topk  (selector, kvfw)\n")
    assert "  passed  select-ties" in out
    assert "0 failed" in out.splitlines()[-1]


def test_options_are_part_of_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "niah( begin_answer=false )"]) == 0
    assert capsys.readouterr().out.startswith("niah(begin_answer=false)  (task, kvfw)\n")


@pytest.mark.usefixtures("strangers")
def test_a_broken_part_ends_with_1_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "zero"]) == 1
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  FAILED  metric-nothing"))
    assert lines[at + 1 : at + 3] == [
        "          expected: Missing with a reason where there is nothing to measure",
        "          seen: 0",
    ]
    assert "Traceback" not in captured.out + captured.err


@pytest.mark.usefixtures("strangers")
def test_findings_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "zero", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    (part,) = data["parts"]
    assert (data["schema"], data["passed"], part["passed"]) == (1, False, False)
    assert (part["kind"], part["name"], part["text"], part["provider"]) == ("metric", "zero", "zero", "stranger")
    outcomes = {found["id"]: found["outcome"] for found in part["properties"]}
    assert outcomes["metric-nothing"] == "failed"
    assert outcomes["metric-value"] == "passed"
    assert outcomes["metric-derived"] == "not applicable"
    assert set(outcomes.values()) == {"passed", "failed", "not applicable"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["snapkw"], "Did you mean snapkv"),
        (["snapkv", "--kind", "metric"], "unknown metric 'snapkv'"),
        (["snapkv(window=0)"], "greater than or equal to 1"),
        (["snapkv(with=3)"], "snapkv has no option 'with'"),
        (["snapkv(window=3"], "expected ',' or ')'"),
        (["snapkv", "--kind", "scorers"], "'scorers' is not one of"),
    ],
)
def test_a_wrong_request_ends_with_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", *arguments]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""
