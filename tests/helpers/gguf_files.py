"""Small GGUF files, and what a converted folder has to hold: the same numbers, read by the format's definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

HIDDEN, HEADS, KV_HEADS, WIDE, LAYERS = 64, 4, 2, 96, 2
MERGES = ["Ġ Ġ", "Ċ Ċ", "h e", "1 2"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def interleave(rows: Array, heads: int) -> Array:
    """What GGUF does to the rows of a rotary projection, spelled out row by row."""
    out = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for i in range(size // 2):
            for half in range(2):
                out[head * size + 2 * i + half] = rows[head * size + half * size // 2 + i]
    return out


def reference_values(blocks: Array, kind: str) -> Array:
    """Decode quantised rows by the format's definition: 32 numbers share a scale (and a minimum)."""
    if kind == "F32":
        return blocks
    size = {"Q4_1": 20, "Q8_0": 34}[kind]
    flat = np.ascontiguousarray(blocks).reshape(-1, size)
    scale = flat[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":
        values = scale * flat[:, 2:].copy().view(np.int8).astype(np.float32)
    else:
        minimum = flat[:, 2:4].copy().view(np.float16).astype(np.float32)
        nibbles = np.concatenate([flat[:, 4:] & 15, flat[:, 4:] >> 4], axis=1).astype(np.float32)
        values = scale * nibbles + minimum
    decoded: Array = values.astype(np.float32).reshape(blocks.shape[0], -1)
    return decoded


def layer_shapes() -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    return {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (WIDE, HIDDEN),
        "ffn_up": (WIDE, HIDDEN),
        "ffn_down": (HIDDEN, WIDE),
    }


def write_tiny_gguf(path: Path, *, pre: str = "smollm", skip: str = "", scaling: str = "") -> Path:
    """A random two-layer Llama in Q4_1 and Q8_0, with a byte-level tokenizer that has four merges."""
    import gguf
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    make_alphabet: Any = bytes_to_unicode
    tokens = CONTROL + list(make_alphabet().values()) + [merge.replace(" ", "") for merge in MERGES]
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    if scaling:
        writer.add_string("llama.rope.scaling.type", scaling)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")

    def add(name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> None:
        values = random.standard_normal(shape).astype(np.float32)
        if name == skip:
            return
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", (len(tokens), HIDDEN), gguf.GGMLQuantizationType.Q8_0)
    for layer in range(LAYERS):
        for part, shape in layer_shapes().items():
            add(f"blk.{layer}.{part}.weight", shape, gguf.GGMLQuantizationType.Q4_1)
    add("output_norm.weight", (HIDDEN,), gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def expected_tensors(source: Path) -> dict[str, Array]:
    """The file's numbers under GGUF's names, decoded by the reference above."""
    import gguf

    return {
        str(tensor.name): reference_values(np.array(tensor.data), tensor.tensor_type.name)
        for tensor in gguf.GGUFReader(str(source)).tensors
    }


def saved_tensors(folder: Path) -> dict[str, Array]:
    from safetensors.numpy import load_file

    return dict(load_file(folder / "model.safetensors"))


NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def assert_same_bits(source: Path, folder: Path, heads: int, kv_heads: int) -> None:
    expected, saved = expected_tensors(source), saved_tensors(folder)
    assert len(saved) == len(expected)
    for name, values in expected.items():
        match name.split("."):
            case ["blk", layer, part, "weight"]:
                found = saved[f"model.layers.{layer}.{NAMES[part]}.weight"]
                if part in ("attn_q", "attn_k"):
                    found = interleave(found, heads if part == "attn_q" else kv_heads)
            case ["token_embd", "weight"]:
                found = saved["model.embed_tokens.weight"]
            case _:
                found = saved["model.norm.weight"]
        assert found.dtype == np.float32
        assert found.tobytes() == values.astype(np.float32).tobytes(), name
