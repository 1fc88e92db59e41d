"""Evaluations that compress while decoding: answers of an attach block, a bounded cache, and what cannot be used."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kvfw.core.compose.composition import parse
from kvfw.core.contracts.records import TrialRecord
from kvfw.core.registry.registry import default_registry
from kvfw.errors import RequestError, UnsupportedError
from kvfw.model.compat.versions import passed
from kvfw.model.load.load import LoadedModel, load_model
from kvfw.model.run.decode import end_tokens
from kvfw.model.session.attach import attach
from kvfw.runner.execute.evaluate import Silent
from kvfw.runner.execute.evaluate import evaluate as evaluate_and_report
from kvfw.runner.plan.config import EvalConfig
from kvfw.runner.plan.prepare import prepare
from kvfw.store.run_folder import load_run

evaluate = partial(evaluate_and_report, report=False)

COMPOSITIONS = (
    "snapkv(window=16)",
    "h2o",
    "h2o(local=2)@adakv",
    "[0]full;[1]h2o",
    "streaming(positions=cache)",
    "snapkv(window=16):0.8+ewmeans_pre(iters=2):0.2",
    "h2o:0.5+ewmeans_post(iters=2,weight=h2o):0.5",
)
NEW, EVERY = 20, 6


def config(folder: Path, out: Path, *compose: str, **more: Any) -> EvalConfig:
    settings: dict[str, Any] = {
        "model": str(folder),
        "out": out,
        "compose": compose,
        "ratio": ("4",),
        "contexts": (200,),
        "depths": (50.0,),
        "recent": 90,
        "max_new_tokens": NEW,
        "compress_every": EVERY,
    }
    return EvalConfig.of({**settings, **more})


def by_row(out: Path) -> dict[str, TrialRecord]:
    return {record.key.compose: record for record in load_run(out).records}


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(str(tiny_folder), device="cpu")


@torch.inference_mode()
def attached(loaded: LoadedModel, asked: EvalConfig, compose: str) -> tuple[tuple[int, ...], int, list[float]]:
    """The response of an attach block fed token by token, the most bytes it held, and each token's NLL."""
    (planned,) = prepare(asked, default_registry()).prompts
    (question,) = planned.questions
    ends, model = end_tokens(loaded.model), loaded.model
    with attach(
        model, parse(compose), ratio=4, sinks=asked.sinks, recent=asked.recent, compress_every=asked.compress_every
    ) as cache:

        def fed(ids: Any) -> torch.Tensor:
            untyped: Any = model
            logits: torch.Tensor = untyped(input_ids=torch.tensor([list(ids)]), **passed(model, cache)).logits
            held.append(cache.held_bytes())
            return logits[0, -1].float()

        held: list[int] = []
        logits = fed(planned.compressed_ids)
        if question.exact_ids:
            logits = fed(question.exact_ids)
        tokens = [int(logits.argmax())]
        nll = [float(-logits.log_softmax(-1)[tokens[-1]])]
        while len(tokens) < NEW and tokens[-1] not in ends:
            logits = fed(tokens[-1:])
            tokens.append(int(logits.argmax()))
            nll.append(float(-logits.log_softmax(-1)[tokens[-1]]))
    return tuple(tokens), max(held), nll


@pytest.mark.parametrize("aware", [True, False], ids=["aware", "agnostic"])
def test_answers_and_peaks_are_those_of_an_attach_block(
    tiny_folder: Path, tmp_path: Path, loaded: LoadedModel, aware: bool
) -> None:
    asked = config(tiny_folder, tmp_path / "run", *COMPOSITIONS, question_aware=aware)
    evaluate(asked)
    found = by_row(tmp_path / "run")
    assert found.keys() == {"full", *COMPOSITIONS}
    for compose in COMPOSITIONS:
        tokens, peak, likelihoods = attached(loaded, asked, compose)
        assert len(tokens) > 2 * EVERY
        assert found[compose].response == loaded.tokenizer.decode(list(tokens), skip_special_tokens=True), compose
        assert found[compose].extra["response_tokens"] == len(tokens)
        # The question is held in full until its forward ends in a compression, which the block does not show.
        asked_mb = found[compose].metrics["kv_mb"] or 0
        # Buffers have room for a fiftieth more, and how full they are depends on what was fed at once.
        assert found[compose].metrics["peak_kv_mb"] == pytest.approx(max(asked_mb, peak / 2**20), rel=0.02), compose
        assert not aware or asked_mb < peak / 2**20
        # Teacher-forced in stretches, where the block feeds token by token: token 1 too after a question.
        counted = likelihoods[aware:]
        perplexity = math.exp(sum(counted) / len(counted))
        assert found[compose].metrics["self_ppl"] == pytest.approx(perplexity, rel=1e-3), compose


def test_no_head_ever_holds_more_than_its_slots_and_a_stretch(tiny_folder: Path, tmp_path: Path) -> None:
    slots, heads, dim = 110, 2 * 2, 8
    evaluate(config(tiny_folder, tmp_path / "run", "h2o", "snapkv", ratio=(), slots=(str(slots),)))
    evaluate(
        config(tiny_folder, tmp_path / "once", "h2o", "snapkv", ratio=(), slots=(str(slots),), compress_every=None)
    )
    once = by_row(tmp_path / "once")
    for compose, record in by_row(tmp_path / "run").items():
        assert record.extra["response_tokens"] > EVERY
        assert "peak_kv_mb" not in once[compose].metrics
        # What the prompt leaves is the same; only decoding differs, and not for the full cache.
        assert record.metrics["kv_mb"] == once[compose].metrics["kv_mb"]
        peak = (record.metrics["peak_kv_mb"] or 0) * 2**20
        if compose == "full":
            assert record.response == once[compose].response
            most = 200 + record.extra["response_tokens"] - 1
        else:
            most = slots + EVERY - 1
        # Buffers have room for a fiftieth more.
        assert most <= peak / (heads * dim * 2 * 4) <= 1.02 * most


def test_results_show_the_peak_only_where_it_is_asked_for(tiny_folder: Path, tmp_path: Path) -> None:
    asked = config(tiny_folder, tmp_path / "run", "snapkv")
    done = evaluate(asked)
    assert [info.unit for info in done.results.metrics if info.name == "peak_kv_mb"] == ["MB"]
    assert done.results.config["compress_every"] == EVERY
    once = evaluate(config(tiny_folder, tmp_path / "once", "snapkv", compress_every=None))
    assert "peak_kv_mb" not in {info.name for info in once.results.metrics}
    assert "compress_every" not in once.results.config


@pytest.mark.parametrize(
    ("compose", "words"),
    [
        ("kvzip", "kvzip: compress_every compresses slots that are no longer the prompt's"),
        ("[0]full;[1]kvzip@adakv", r"\[0\]full;\[1\]kvzip@adakv: compress_every"),
        ("pinned", "pinned: compress_every .* lexical features"),
        ("h2o:0.5+streaming(positions=cache):0.5", "column sums .* use positions=original"),
    ],
)
def test_what_decoding_cannot_observe_is_refused_by_name_before_weights_load(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compose: str, words: str
) -> None:
    monkeypatch.setattr("kvfw.model.load.load.OpenModel.load", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(UnsupportedError, match=words):
        evaluate(config(tiny_folder, tmp_path / "run", "snapkv", compose))
    assert not (tmp_path / "run").exists()


class StopsAfterOne(Silent):
    def trial(self, record: TrialRecord) -> None:
        raise KeyboardInterrupt


def test_it_resumes_only_with_the_same_stretch(tiny_folder: Path, tmp_path: Path) -> None:
    asked = config(tiny_folder, tmp_path / "cut", "h2o")
    with pytest.raises(KeyboardInterrupt):
        evaluate(asked, progress=StopsAfterOne())
    for other, words in ((8, "compress_every: 6 there, 8 asked"), (None, "compress_every: 6 there, nothing asked")):
        with pytest.raises(RequestError, match=words):
            evaluate(asked.model_copy(update={"resume": True, "compress_every": other}))
    evaluate(asked.model_copy(update={"resume": True}))
    evaluate(config(tiny_folder, tmp_path / "whole", "h2o"))
    cut, whole = by_row(tmp_path / "cut"), by_row(tmp_path / "whole")
    assert {name: record.response for name, record in cut.items()} == {n: r.response for n, r in whole.items()}
    assert cut["h2o"].metrics["peak_kv_mb"] == whole["h2o"].metrics["peak_kv_mb"]


def test_a_run_from_before_the_setting_is_resumed_without_it(tiny_folder: Path, tmp_path: Path) -> None:
    asked = config(tiny_folder, tmp_path / "run", "snapkv", compress_every=None)
    with pytest.raises(KeyboardInterrupt):
        evaluate(asked, progress=StopsAfterOne())
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "compress_every" not in stored["settings"]
    assert len(evaluate(asked.model_copy(update={"resume": True})).results.rows) == 2
