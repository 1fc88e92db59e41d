"""What must hold on every model family, as checks that raise AssertionError, and the families they are for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from helpers.eager import eager_attention, reference_kept, reference_scores
from helpers.rotations import LENGTH as ROTATED
from helpers.rotations import ROTATIONS, observed
from helpers.tiny_models import at_once, bound, build, close, generate, kept, prompt, snapshot
from kvfw.core.state.rope import rotate, unrotate
from kvfw.core.state.state import KVState
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.compat.versions import passed
from kvfw.model.run.decode import greedy
from kvfw.model.run.prefill import prefill
from kvfw.model.session.attach import attach

MIX = "snapkv(window=16):0.8+ewmeans_pre(iters=2):0.2"
PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH, NEW = 90, 12

#: What people call a family, by the name of its tiny model.
FAMILIES = {
    "llama": "Llama",
    "llama3": "Llama 3 (scaled RoPE)",
    "linear": "Llama, linear scaling",
    "dynamic": "Llama, dynamic NTK",
    "yarn": "Llama, YaRN",
    "qwen2": "Qwen 2",
    "qwen3": "Qwen 3",
    "qwen3_vl": "Qwen 3 VL, text",
    "mistral": "Mistral, no window",
    "mixtral": "Mixtral",
    "phi": "Phi",
    "phi3": "Phi-3",
    "longrope": "Phi-3, LongRoPE",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3",
    "glm": "GLM",
    "glm4": "GLM-4",
    "cohere": "Cohere",
    "cohere2": "Cohere 2",
    "olmo2": "OLMo 2",
    "exaone4": "EXAONE 4",
    "smollm3": "SmolLM3",
    "gpt_neox": "GPT-NeoX",
    "gpt_oss": "gpt-oss",
    "gpt2": "GPT-2",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: Relative error of undoing a rotation that was done in a dtype: its tables and its results are rounded.
ROPE_ERROR = {"float32": 2e-6, "bfloat16": 8e-3, "float16": 1e-3}
#: Tied embeddings of these sizes make a random model repeat its last token, whatever it attends to.
UNTIED = ("gemma3", "cohere2", "cohere")


def fresh(name: str, dtype: str = "float32", attention: str | None = None) -> PreTrainedModel:
    """A model of the family's own; dynamic variants remember the longest input they have seen."""
    changes = {"tie_word_embeddings": False} if name in UNTIED else {}
    model: Any = build(name, attention=attention, **changes)
    cast: PreTrainedModel = model.to(DTYPES[dtype])
    return cast


def attached(name: str, dtype: str, ratio: int) -> tuple[list[int], CompressedCache]:
    """Tokens generated under attach, and the cache."""
    model, ids = fresh(name, dtype), prompt(LENGTH)
    with attach(model, MIX, ratio=ratio, **PROTECTED) as cache, torch.inference_mode():
        if name == "longrope":
            # Its own generate drops an empty cache where the prompt is long: see the error that says so.
            model(ids[:, :-1], **passed(model, cache), use_cache=True)
        return generate(model, ids, NEW, cache=cache)[0].tolist(), cache


def plain(name: str, dtype: str) -> list[int]:
    """Tokens generated without kvfw."""
    tokens: list[int] = generate(fresh(name, dtype), prompt(LENGTH), NEW)[0].tolist()
    return tokens


def check_identity(name: str, dtype: str) -> None:
    """Ratio 1 generates what the plain model does; a compressed cache does not."""
    expected = plain(name, dtype)
    assert len(set(expected)) > 2, "a model that repeats itself proves nothing"
    assert attached(name, dtype, 1)[0] == expected
    assert attached(name, dtype, 16)[0] != expected


def check_full_cache(name: str) -> None:
    """A cache compressed at ratio 1 is the full cache, in tokens and in logits."""
    check_identity(name, "float32")
    check_logits(name)


def check_logits(name: str) -> None:
    """Teacher-forced over a cache compressed at ratio 1, logits are those of one uncompressed forward."""
    ids = prompt(LENGTH + NEW)
    by, model = bound(MIX, ratio=1), fresh(name)
    expected = in_two_forwards(fresh(name), ids) if name == "dynamic" else in_one_forward(fresh(name), ids)
    # Float32; measured 9e-6 at most, of logits of size 10.
    close(at_once(model, ids[:, LENGTH:], snapshot(model, ids[:, :LENGTH], by).compressed(by)), expected)


def in_one_forward(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Logits of what follows the prompt."""
    with torch.inference_mode():
        logits: Tensor = model(input_ids=ids).logits[:, LENGTH:]
    return logits


def in_two_forwards(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The same over the model's own cache: frequencies that change with the length are those of each forward."""
    own = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=ids[:, :LENGTH], **passed(model, own), use_cache=True)
        logits: Tensor = model(input_ids=ids[:, LENGTH:], **passed(model, own), use_cache=True).logits
    return logits


def check_attach_equals_snapshot(name: str) -> None:
    """Generating under attach is generating over the compressed snapshot of a prefill."""
    tokens, cache = attached(name, "float32", 4)
    model, by = fresh(name), bound(MIX)
    taken = snapshot(model, prompt(LENGTH)[:, : LENGTH - (name == "longrope")], by)
    states = taken.compressed(by)
    expected = one_more(model, states) if name == "longrope" else list(greedy(model, states, taken.logits, NEW))
    assert tokens == expected
    # Sliding-window layers are left as they are, and their bytes are counted.
    for index, (layer, sliding) in enumerate(zip(cache.report().layers, cache.is_sliding, strict=True)):
        assert layer.compressed is not sliding
        found: Any = cache.layers[index]
        stored = found.keys.numel() + found.values.numel()
        assert not sliding or layer.kv_bytes >= stored * found.keys.element_size() > 0


def one_more(model: PreTrainedModel, cache: CompressedCache) -> list[int]:
    """Greedy tokens where the prompt's last token is fed over the compressed rest."""
    logits = at_once(model, prompt(LENGTH)[:, -1:], cache)[:, -1]
    return list(greedy(model, cache, logits, NEW))


def check_kept_sets(name: str) -> None:
    """SnapKV and H2O keep what the model's own eager attention says."""
    attentions = eager_attention(fresh(name, attention="eager"), prompt(LENGTH))
    budget = (LENGTH - 12) // 4
    snapkv, h2o = bound("snapkv(window=32,kernel=5)"), bound("h2o(local=0,norm=none)")
    taken = prefill(fresh(name), prompt(LENGTH)[0].tolist(), snapkv.needs | h2o.needs, **PROTECTED)
    by_window, by_sums = taken.compressed_states(snapkv), taken.compressed_states(h2o)
    assert by_window
    for i in taken.observations:
        heads = by_window[i].keys.shape[1]
        scores = reference_scores(attentions[i], heads, 32, 5, "avg")
        assert kept_sets(by_window[i]) == reference_kept(scores, budget, LENGTH), i
        sums = attentions[i].sum(1).reshape(heads, -1, LENGTH).mean(1)[:, 4 : LENGTH - 8]
        assert kept_sets(by_sums[i]) == reference_kept(sums, budget, LENGTH), i


def kept_sets(state: KVState) -> list[list[float]]:
    """Positions of every head of the first row."""
    return [kept(state, 0, head) for head in range(state.keys.shape[1])]


def check_rope(name: str, dtype: str) -> None:
    """Stored keys, rotated back, are the projected ones, to what the dtype allows."""
    observations, before = observed(fresh(name, dtype), ROTATIONS[name][2])
    positions = torch.arange(ROTATED, dtype=torch.float32)
    for i, obs in observations.items():
        original = before[i].float()
        if obs.rope is None:
            assert torch.equal(obs.state.keys, before[i])
            continue
        where = positions.expand(1, original.shape[1], -1)
        assert relative(unrotate(obs.state.keys, where, obs.rope), original) < ROPE_ERROR[dtype]
        assert relative(rotate(original, where, obs.rope), obs.state.keys.float()) < ROPE_ERROR[dtype]


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def overlap(first: dict[int, KVState], second: dict[int, KVState]) -> float:
    """Share of the kept middle tokens that two runs have in common."""
    pairs = [
        (set(a[4:-8]), set(b[4:-8]))
        for i in first
        for a, b in zip(kept_sets(first[i]), kept_sets(second[i]), strict=True)
    ]
    return sum(len(a & b) for a, b in pairs) / sum(len(a) for a, _ in pairs)


def states(name: str, dtype: str, attention: str) -> dict[int, KVState]:
    """What SnapKV keeps of a prompt on an attention implementation."""
    by = bound("snapkv(window=32)")
    with torch.compiler.set_stance("force_eager"):
        return snapshot(fresh(name, dtype, attention), prompt(LENGTH), by).compressed_states(by)


Check = Callable[[], None]


def checks(name: str) -> dict[str, Check]:
    """All checks of a family, by column of the table."""
    rotates = name in ROTATIONS
    found: dict[str, Check] = {
        "full cache": functools.partial(check_full_cache, name),
        "attach": functools.partial(check_attach_equals_snapshot, name),
        "kept tokens": functools.partial(check_kept_sets, name),
    }
    for dtype in DTYPES:
        if rotates:
            found[f"RoPE {dtype}"] = functools.partial(check_rope, name, dtype)
        if dtype != "float32":
            found[dtype] = functools.partial(check_identity, name, dtype)
    return found


@functools.cache
def outcome(name: str, check: str) -> str | None:
    """What is wrong, or None; every check runs once."""
    try:
        checks(name)[check]()
    except AssertionError as error:
        return str(error) or "failed"
    return None
