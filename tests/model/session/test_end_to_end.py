"""The embedded model all the way, on whatever transformers is installed: the command line, and plain generate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from helpers.tiny_models import prompt, text_ids, tiny
from kvfw.model.compat.versions import cache_name
from kvfw.model.load.load import LoadedModel
from kvfw.model.session.attach import attach

HYBRID = "snapkv:0.8+ewmeans_pre:0.2"
SMALL = ["--preset", "quick", "--contexts", "512", "--depths", "50", "--max-new-tokens", "8", "--json"]


@pytest.mark.real
def test_an_evaluation_of_the_embedded_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvfw", "eval", *SMALL, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    full, hybrid = json.loads(done.stdout)["rows"]
    assert (full["compose"], hybrid["compose"]) == ("full", HYBRID)
    assert hybrid["metrics"]["kv_mb"]["mean"] < 0.6 * full["metrics"]["kv_mb"]["mean"]
    facts = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
    assert transformers.__version__ in json.dumps(facts)


@pytest.mark.real
def test_generate_on_the_embedded_model(smollm: LoadedModel) -> None:
    model: Any = smollm.model
    ids = text_ids(smollm, 300)
    plain = model.generate(ids, max_new_tokens=8, do_sample=False)
    # The name that README gives for this version.
    with attach(model, HYBRID, ratio=1) as cache:
        named = {cache_name(model): cache}
        assert torch.equal(model.generate(ids, **named, max_new_tokens=8, do_sample=False), plain)
    with attach(model, HYBRID, ratio=4) as cache:
        assert model.generate(ids, **{cache_name(model): cache}, max_new_tokens=8, do_sample=False).shape == (1, 308)
    assert max(layer.slots for layer in cache.report().layers)[0] == 4 + 84 + (300 - 88) // 4 + 7


def test_the_older_name_of_the_cache_is_understood_by_every_version() -> None:
    model: Any = tiny("llama")
    options = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones(1, 60)}
    tokens = []
    for name in ("past_key_values", cache_name(model)):
        with attach(model, "streaming", ratio=4, sinks=4, recent=8) as cache:
            tokens.append(model.generate(prompt(60), **{name: cache}, **options))
        assert all(layer.compressed for layer in cache.report().layers)
    assert torch.equal(*tokens)
