"""What must hold on every model family, and the table that says so."""

import re
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version

from helpers.families import FAMILIES, check_kept_sets, checks, fresh, kept_sets, outcome, overlap, states
from helpers.matrix import REFUSED, committed, refusal, tables
from helpers.pins import pinned
from helpers.tiny_models import configuration, generate, prompt
from kvfw.core.state.observation import Needs
from kvfw.errors import PromptError, UnsupportedError
from kvfw.model.compat.versions import cache_name, passed
from kvfw.model.run.prefill import prefill
from kvfw.model.session.attach import attach
from kvfw.runner.plan.limits import check_positions

pytestmark = pytest.mark.slow

CHECKS = [(name, check) for name in FAMILIES for check in checks(name)]


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_it_holds(name: str, check: str) -> None:
    assert outcome(name, check) is None


def test_the_committed_table_is_what_holds() -> None:
    found, expected = tables(), committed()
    if Version(transformers.__version__) != pinned("constraints.txt")["transformers"]:
        # The page is written with the newest transformers. Older ones have to do the same; what is refused is refused
        # there, too, some of it for another reason.
        found, expected = (re.sub(r"because it \|.*", "", text, flags=re.DOTALL) for text in (found, expected))
    assert expected == found, "docs/models.md is out of date: run tests/helpers/matrix.py"


@pytest.mark.parametrize("title", REFUSED)
def test_it_is_refused_with_a_reason(title: str) -> None:
    reason = refusal(title)
    assert reason is not None
    assert len(reason) > 20


@pytest.mark.parametrize(("name", "forgotten"), [("gemma2", "softcap"), ("gpt_oss", "sink_logits")])
def test_caps_and_sinks_decide_what_is_kept(name: str, forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the check of kept tokens would hold for scorers that do not know of them.
    from kvfw.core.ops.columns import attention_columns

    def forgetful(*args: Any, **options: Any) -> Any:
        return attention_columns(*args, **{key: value for key, value in options.items() if key != forgotten})

    monkeypatch.setattr("kvfw.model.session.capture.attention_columns", forgetful)
    with pytest.raises(AssertionError):
        check_kept_sets(name)


# --- attention implementations ---------------------------------------------------------------------------

BACKENDS = ("sdpa", "flex_attention")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "phi3", "glm4", "gpt_neox"])
def test_every_implementation_keeps_the_same_in_float32(name: str, backend: str) -> None:
    ours, theirs = states(name, "float32", backend), states(name, "float32", "eager")
    assert all(kept_sets(ours[i]) == kept_sets(theirs[i]) for i in theirs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "phi3", "glm4", "gpt_neox"])
def test_implementations_agree_in_half_precision(name: str, dtype: str, backend: str) -> None:
    ours, theirs = states(name, dtype, backend), states(name, dtype, "eager")
    # Measured 0.987 at least.
    assert overlap(ours, theirs) >= 0.98
    if 0 in theirs:
        # Nothing came before the first layer, so its queries and keys are the same.
        assert kept_sets(ours[0]) == kept_sets(theirs[0])


def test_flex_attention_takes_capped_logits() -> None:
    ours, theirs = states("gemma2", "float32", "flex_attention"), states("gemma2", "float32", "eager")
    assert all(kept_sets(ours[i]) == kept_sets(theirs[i]) for i in theirs)


# --- LongRoPE --------------------------------------------------------------------------------------------

SWITCH = 64


def test_longrope_says_where_generate_drops_the_cache() -> None:
    model = fresh("longrope")
    call = rf"model\(input_ids\[:, :-1\], {cache_name(model)}=cache\)"
    refused = pytest.raises(UnsupportedError, match=f"drops its cache there.*{call}")
    with refused, attach(model, "streaming", ratio=4, sinks=4, recent=8) as cache:
        generate(model, prompt(90), 4, cache=cache)


@pytest.mark.parametrize(("tokens", "fits"), [(60, True), (61, False), (64, False), (65, True)])
def test_an_evaluation_is_told_of_the_switch_before_it_runs(tokens: int, fits: bool) -> None:
    refused = pytest.raises(PromptError, match="use at most 60 or more than 64 tokens")
    with nullcontext() if fits else refused:
        check_positions("a context of", tokens, 4, "tiny", configuration("longrope"))


def test_longrope_refuses_to_cross_its_switch() -> None:
    model = fresh("longrope")
    with attach(model, "streaming", ratio=4, sinks=4, recent=8) as cache, torch.inference_mode():
        model(prompt(SWITCH - 2), **passed(model, cache), use_cache=True)
        model(prompt(2), **passed(model, cache), use_cache=True)
        with pytest.raises(UnsupportedError, match="beyond 64 tokens, so the 64 keys of this cache do not fit"):
            model(prompt(1), **passed(model, cache), use_cache=True)
    with pytest.raises(UnsupportedError, match="in one forward"):
        prefill(fresh("longrope"), prompt(90)[0].tolist(), Needs(), sinks=4, recent=8, chunk=50)
