"""Small randomly initialised models of many architectures, and what tests of compression on models share."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import Compressor, compressor
from kvfw.core.contracts.parts import Allocator, LayerView
from kvfw.core.state.observation import Needs
from kvfw.core.state.state import KVState
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.compat.versions import passed
from kvfw.model.load.load import LoadedModel
from kvfw.model.run.prefill import Prefill, prefill
from kvfw.model.session.plan import SessionPlan
from kvfw.model.session.session import Session

VOCAB = 211

#: The shape every tiny model has unless its entry says otherwise: grouped queries, peaky attention.
#: The large initialiser makes attention far from uniform, so that a wrong mask or a wrong token shows in the logits.
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}

MIXED_LAYERS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
SLIDING_WINDOW = 16

#: Architecture by name: class prefix in transformers, and what differs from SHAPE.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mha": ("Llama", {"num_key_value_heads": 4}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "gemma3": (
        "Gemma3",
        {"num_hidden_layers": 4, "layer_types": MIXED_LAYERS, "sliding_window": SLIDING_WINDOW},
    ),
    "cohere2": (
        "Cohere2",
        {"num_hidden_layers": 4, "layer_types": MIXED_LAYERS, "sliding_window": SLIDING_WINDOW},
    ),
    "exaone4": (
        "Exaone4",
        {"num_hidden_layers": 4, "layer_types": MIXED_LAYERS, "sliding_window": SLIDING_WINDOW},
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1]}),
    "llama3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "yarn": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "dynamic": (
        "Llama",
        {
            "max_position_embeddings": 64,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        },
    ),
    "phi": ("Phi", {"partial_rotary_factor": 0.5}),
    "stablelm": ("StableLm", {"partial_rotary_factor": 0.25}),
    "glm": ("Glm", {"partial_rotary_factor": 0.5}),
    "glm4": ("Glm4", {"partial_rotary_factor": 0.5}),
    "cohere": ("Cohere", {}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "n_inner": 96}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral_sliding": ("Mistral", {"sliding_window": SLIDING_WINDOW}),
    "mixtral": ("Mixtral", {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi3": ("Phi3", {"sliding_window": None}),
    "longrope": (
        "Phi3",
        {
            "sliding_window": None,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
                "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0],
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "gemma2": (
        "Gemma2",
        {
            "num_hidden_layers": 4,
            "layer_types": MIXED_LAYERS,
            "sliding_window": SLIDING_WINDOW,
            # Low beside logits of this scale, so that capping changes which keys come first in a sum over heads.
            "attn_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 4,
            "final_logit_softcapping": None,
            # Tied, large embeddings would make every model repeat its last token, whatever it attends to.
            "tie_word_embeddings": False,
        },
    ),
    "olmo2": ("Olmo2", {}),
    "gpt_neox": ("GPTNeoX", {"rotary_pct": 0.25}),
    "qwen3_vl": (
        "Qwen3VL",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}},
    ),
    "gpt_oss": (
        "GptOss",
        {
            "num_hidden_layers": 4,
            "layer_types": MIXED_LAYERS,
            "sliding_window": SLIDING_WINDOW,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "deepseek": (
        "DeepseekV3",
        {
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 3,
            "head_dim": 8,
        },
    ),
}

#: Names of SHAPE that a configuration does not have, or has other names for.
FOREIGN_NAMES = {
    "GPT2": frozenset(
        {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"}
        | {"intermediate_size", "max_position_embeddings"}
    ),
    "GPTNeoX": frozenset({"num_key_value_heads", "head_dim"}),
}
#: Families whose capped logits or attention sinks sdpa does not know.
EAGER_ONLY = frozenset({"Gemma2", "GptOss"})
#: Where the class is not called `{prefix}Config` or `{prefix}ForCausalLM`.
CONFIGS = {"Gemma3": "Gemma3TextConfig", "Qwen3VL": "Qwen3VLTextConfig"}
QWEN3_VL = "transformers.models.qwen3_vl.configuration_qwen3_vl"
HEADS = {"GPT2": "GPT2LMHeadModel", "Qwen3VL": "Qwen3VLForConditionalGeneration"}


@functools.cache
def tiny(name: str, attention: str | None = None) -> PreTrainedModel:
    """A model of an architecture with random weights, shared by all tests: leave it as you found it."""
    return build(name, attention=attention)


def build(name: str, *, attention: str | None = None, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A model of your own; the same weights for the same arguments. On sdpa, where it is not told and can."""
    untyped: Any = transformers
    config = configuration(name, **changes)
    prefix = MODELS[name][0]
    config._attn_implementation = attention or ("eager" if prefix in EAGER_ONLY else "sdpa")
    torch.manual_seed(seed)
    model: PreTrainedModel = getattr(untyped, HEADS.get(prefix, f"{prefix}ForCausalLM"))(config).eval()
    for module in model.modules():
        if isinstance(sinks := getattr(module, "sinks", None), torch.nn.Parameter):
            # From next to nothing to nearly everything: which keys come first in a sum over heads changes.
            sinks.data = torch.linspace(-2, 6, sinks.numel())
    return model.requires_grad_(False)


def configuration(name: str, **changes: Any) -> Any:
    """The configuration of a tiny model."""
    untyped: Any = transformers
    prefix, own = MODELS[name]
    shape = {key: value for key, value in SHAPE.items() if key not in FOREIGN_NAMES.get(prefix, ())}
    config = getattr(untyped, CONFIGS.get(prefix, f"{prefix}Config"))(**(shape | own | changes))
    if prefix != "Qwen3VL":
        return config
    # Not among transformers' own names before 5.6.
    vision_config: Any = importlib.import_module(QWEN3_VL).Qwen3VLVisionConfig
    vision = vision_config(
        depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=64, deepstack_visual_indexes=[0]
    )
    return untyped.Qwen3VLConfig(text_config=config.to_dict(), vision_config=vision.to_dict())


def prompt(length: int, *, seed: int = 1, rows: int = 1) -> Tensor:
    """Random token ids ``[rows, length]``, never the padding token."""
    return torch.randint(1, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def bound(
    composition: str, *, ratio: str | float = 4, sinks: int = 4, recent: int = 8, keep: float | None = None
) -> Compressor:
    """A compressor with few protected tokens, so that short prompts have a middle."""
    asked = amount(keep=keep) if keep is not None else amount(ratio=ratio)
    return compressor(parse(composition), asked, sinks=sinks, recent=recent)


def allocated(by: Compressor, allocator: Allocator | None) -> Compressor:
    """The compressor with an allocator made by hand, if there is one."""
    return by if allocator is None else replace(by, composition=by.composition.allocated_by(allocator))


def snapshot(model: PreTrainedModel, ids: Tensor, by: Compressor) -> Prefill:
    """One observed forward of a prompt of one row."""
    return prefill(model, ids[0].tolist(), by.needs, sinks=by.sinks, recent=by.recent)


def generate(model: PreTrainedModel, ids: Tensor, new: int, **options: Any) -> Tensor:
    """The new tokens of plain greedy ``model.generate``; a ``cache`` is given to it by the name it has for caches."""
    untyped: Any = model
    options.setdefault("attention_mask", torch.ones_like(ids))
    if "cache" in options:
        options |= passed(model, options.pop("cache"))
    settings = {"max_new_tokens": new, "do_sample": False} | options
    out: Tensor = untyped.generate(input_ids=ids, **settings)
    return out[:, ids.shape[1] :]


@contextmanager
def session(model: PreTrainedModel, cache: CompressedCache) -> Iterator[None]:
    """Lets a model run over a cache that was compressed before."""
    with Session(model, cache, SessionPlan(needs=Needs(), sinks=0, recent=0)).running(), torch.inference_mode():
        yield


def forward(model: PreTrainedModel, ids: Tensor, cache: CompressedCache, **options: Any) -> Tensor:
    """Logits ``[B, n, V]`` of one forward."""
    logits: Tensor = model(input_ids=ids, **passed(model, cache), use_cache=True, **options).logits
    return logits


def at_once(model: PreTrainedModel, ids: Tensor, cache: CompressedCache, **options: Any) -> Tensor:
    """Logits of a continuation fed in one forward."""
    with session(model, cache):
        return forward(model, ids, cache, **options)


def one_by_one(model: PreTrainedModel, ids: Tensor, cache: CompressedCache) -> Tensor:
    """Logits of the same continuation fed token by token: no mask among new tokens can be wrong here."""
    with session(model, cache):
        steps = [forward(model, ids[:, i : i + 1], cache) for i in range(ids.shape[1])]
    return torch.cat(steps, dim=1)


def parts(state: KVState) -> dict[str, Tensor]:
    """The tensors of a state by name."""
    return {name: getattr(state, name) for name in ("keys", "values", "positions", "mass", "bias")}


def same_bits(first: KVState, second: KVState) -> bool:
    """Whether two states are equal bit for bit."""
    return all(torch.equal(x, y) for x, y in zip(parts(first).values(), parts(second).values(), strict=True))


def stored(cache: CompressedCache, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values of any layer, one with a sliding window too."""
    found = cache.layers[layer]
    assert found.keys is not None
    assert found.values is not None
    return found.keys, found.values


def kept(state: KVState, row: int, head: int) -> list[float]:
    """Positions of the valid slots of a head."""
    found: list[float] = state.positions[row, head][state.valid[row, head]].tolist()
    return found


@dataclass(frozen=True)
class Ragged:
    """Gives every layer and head another number of slots; the sum is right."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        """The mean, plus an offset that is odd in the place of the head, so that offsets cancel."""
        kv_heads = [layer.kv_heads for layer in layers]
        heads = sum(kv_heads)
        each = total // heads
        offsets = [int(math.fmod(2 * place - (heads - 1), 7)) for place in range(heads)]
        starts = [sum(kv_heads[:layer]) for layer in range(len(kv_heads))]
        return [
            each[:, None] + torch.tensor(offsets[start : start + count], device=total.device)
            for start, count in zip(starts, kv_heads, strict=True)
        ]


def close(first: Tensor, second: Tensor, atol: float = 1e-4) -> None:
    """Asserts that tensors agree to ``atol`` plus as much of their size.

    Between two right ways to the same float32 logits of size 10 it was 2e-5 at most, over all tiny models.
    """
    torch.testing.assert_close(first, second, atol=atol, rtol=atol)


def text_ids(loaded: LoadedModel, length: int) -> Tensor:
    """The first tokens ``[1, length]`` of a novel, from a chapter on."""
    text = (files("kvfw.tasks") / "data" / "moby-dick.txt").read_text(encoding="utf-8")
    ids = loaded.tokenizer.encode(text[60_000 : 60_000 + 8 * length])
    return torch.tensor([ids[:length]])
