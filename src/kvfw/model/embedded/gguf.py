"""Converts a GGUF file of the Llama architecture to a folder that transformers loads: float32, lossless.

GGUF stores the query and key projections with the rows of each head interleaved (rotary pairs are neighbours);
transformers keeps the two halves of each head apart. Undoing this reorders rows and changes no number. The ``gguf``
package, the format's own reference, decodes quantised blocks in float32. ``scale * q + minimum`` does not fit bfloat16
in general, so float32 is stored.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvfw.errors import UnsupportedError
from kvfw.model.embedded.tokenizer import entry, tokenizer_from_gguf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import torch
    from gguf import GGUFReader
    from transformers import LlamaConfig

# transformers' name of each tensor of a layer, by GGUF's name for it.
_LAYER_NAMES = {
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
_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert_gguf(source: Path, folder: Path) -> None:
    """Writes the model in ``source``, a GGUF file, to the new folder ``folder``: configurations, weights, tokenizer.

    Raises:
        UnsupportedError: not the Llama architecture, or tensors that are not exactly this model's.
    """
    import transformers
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(str(source))
    config = config_from_gguf(reader)
    tensors = tensors_from_gguf(reader, config)
    _check_complete(source.name, config, tensors)
    untyped: Any = transformers
    generation = untyped.GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    generation.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer_from_gguf(reader).save_pretrained(folder)


def _check_complete(name: str, config: LlamaConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """Compares names and shapes with an empty model's: loading would fill gaps with random numbers."""
    import torch
    import transformers

    untyped: Any = transformers
    with torch.device("meta"):
        empty: torch.nn.Module = untyped.AutoModelForCausalLM.from_config(config)
    expected = {key: tuple(value.shape) for key, value in empty.state_dict().items()}
    if config.tie_word_embeddings:
        del expected["lm_head.weight"]  # is the embedding's, and stored once
    found = {key: tuple(value.shape) for key, value in tensors.items()}
    if found != expected:
        wrong = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        raise UnsupportedError(f"{name}: these tensors are missing, unknown or misshapen: {', '.join(wrong)}")


def config_from_gguf(reader: GGUFReader) -> LlamaConfig:
    """The transformers configuration that the file's metadata describes.

    Raises:
        UnsupportedError: the architecture is not Llama, or its rotary positions are scaled.
    """
    from transformers import LlamaConfig

    architecture = entry(reader, "general.architecture")
    if architecture != "llama":
        raise UnsupportedError(f"only GGUF files of the llama architecture are converted, not {architecture!r}")
    if (scaling := entry(reader, "llama.rope.scaling.type", "none")) != "none":
        raise UnsupportedError(f"GGUF files with {scaling!r} scaling of rotary positions are not converted")
    hidden = int(entry(reader, "llama.embedding_length"))
    heads = int(entry(reader, "llama.attention.head_count"))
    end = entry(reader, "tokenizer.ggml.eos_token_id")
    config = LlamaConfig(
        vocab_size=len(entry(reader, "tokenizer.ggml.tokens")),
        hidden_size=hidden,
        intermediate_size=int(entry(reader, "llama.feed_forward_length")),
        num_hidden_layers=int(entry(reader, "llama.block_count")),
        num_attention_heads=heads,
        num_key_value_heads=int(entry(reader, "llama.attention.head_count_kv", heads)),
        head_dim=int(entry(reader, "llama.rope.dimension_count", hidden // heads)),
        max_position_embeddings=int(entry(reader, "llama.context_length")),
        # The file holds a float32; its shortest decimal (1e-05) is the number its author wrote.
        rms_norm_eps=float(str(np.float32(entry(reader, "llama.attention.layer_norm_rms_epsilon")))),
        rope_parameters={"rope_type": "default", "rope_theta": float(entry(reader, "llama.rope.freq_base", 10_000.0))},
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
        bos_token_id=entry(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=end,
        pad_token_id=entry(reader, "tokenizer.ggml.padding_token_id", end),
    )
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = "float32"
    return config


def tensors_from_gguf(reader: GGUFReader, config: LlamaConfig) -> dict[str, torch.Tensor]:
    """All weights of the file in float32, under transformers' names and in its row order.

    Raises:
        UnsupportedError: a tensor whose name is not that of a Llama weight.
    """
    import torch
    from gguf import dequantize

    tensors: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        name = _transformers_name(tensor.name)
        weights: np.ndarray[Any, np.dtype[np.float32]] = dequantize(tensor.data, tensor.tensor_type)
        if name.endswith("q_proj.weight"):
            weights = split_halves(weights, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            weights = split_halves(weights, config.num_key_value_heads or config.num_attention_heads)
        # A copy, because unquantised tensors are views of the read-only mapped file.
        tensors[name] = torch.from_numpy(np.array(weights, dtype=np.float32, order="C"))
    return tensors


def split_halves(rows: np.ndarray[Any, np.dtype[np.float32]], heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Reorders ``rows [heads * D, n]``: row ``2 i + j`` of a head, one of pair ``i``, goes to row ``j * D / 2 + i``."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _transformers_name(name: str) -> str:
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if layer.isdecimal() and part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"
        case _:
            raise UnsupportedError(f"the GGUF file has a tensor {name!r}, which is not a Llama weight known here")
