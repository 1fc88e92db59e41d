"""Every part of this installation keeps its contract: a new one is covered without writing a test."""

import json
from pathlib import Path

import pytest

from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import default_registry
from kvfw.verify.parts import verify_part

#: What parts cost is measured once here: figures of a busy machine say little, and the check is the same for all.
COSTED = "ewmeans"


#: A table for the suite's layers and its model's, of two KV heads each.
TABLE = {"layers": [[1, 2], [3, "full"], [1, 1], [0, "streaming"]]}

RECORD = {"dataset": "qasper", "context": "The ship sailed in winter. " * 99, "input": "When?", "answers": ["winter"]}
#: Options of the parts that read a file.
WITH_FILES = {
    "table": "(file=heads.json)",
    "headkv": "(file=heads.json)",
    "lukv": "(file=heads.json)",
    "jsonl": "(file=records.jsonl)",
}


@pytest.mark.slow
@pytest.mark.parametrize("spec", default_registry().specs.values(), ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_conformance(spec: PartSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("heads.json").write_text(json.dumps(TABLE))
    Path("records.jsonl").write_text(json.dumps(RECORD))
    text = spec.name + WITH_FILES.get(spec.name, "")
    report = verify_part(text, kind=spec.kind, without=() if spec.name == COSTED else {"cost"})
    assert report.passed, str(report)
    assert len(report.parts) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "snapkv(window=4,kernel=3,pool=max)",
        "snapkv(window=400)",
        "h2o(norm=none,local=5)",
        "pinned(strength=0,attention=h2o)",
        "select(scorer=h2o,selector=evenly)",
        "merge(merger=ewmeans(block=16),space=pre,weight=h2o,bias=log)",
        "ewmeans_pre(iters=1,bias=log)",
        "ewmeans(block=8)",
        "streaming(positions=cache)",
        "adakv(normalise=share)",
        "adakv(normalise=zscore,by=h2o)",
        "equalmass(heads=each)",
        "simlayer(threshold=0.3,recent=5)",
        "refit(queries=prompt,over=all)",
        "kivi(bits=4,group=5,residual=0)",
        "niah(begin_answer=false)",
    ],
)
def test_conformance_with_options(text: str) -> None:
    # The allocator, not the method of this name.
    kind = Kind.ALLOCATOR if text.startswith("adakv") else None
    report = verify_part(text, kind=kind, without={"cost"})
    assert report.passed, str(report)


def test_the_costed_part_exists() -> None:
    assert default_registry().get(Kind.MERGER, COSTED)
