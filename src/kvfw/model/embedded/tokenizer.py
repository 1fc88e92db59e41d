"""Builds the tokenizer that a GGUF file describes: byte-level BPE with SmolLM's pre-tokenizer.

transformers does not know the pre-tokenizer ``smollm`` and falls back to GPT-2's, which splits white space before a
number: "a  5" and a number after an empty line get other tokens than in training. SmolLM splits off each digit first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvfw.errors import UnsupportedError

if TYPE_CHECKING:
    from typing import Any

    from gguf import GGUFReader
    from transformers import PreTrainedTokenizerFast

_CONTROL_TOKEN = 3  # GGUF's token type of tokens that never come from ordinary text
_REQUIRED = object()


def entry(reader: GGUFReader, key: str, default: Any = _REQUIRED) -> Any:
    """The metadata entry ``key``; raises UnsupportedError if it is missing and there is no ``default``."""
    field = reader.get_field(key)
    if field is None and default is _REQUIRED:
        raise UnsupportedError(f"the GGUF file lacks the entry {key!r}")
    return default if field is None else field.contents()


def tokenizer_from_gguf(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """The tokenizer in the file's metadata, with its chat template; padding goes to the left, for generation.

    Raises:
        UnsupportedError: it is not byte-level BPE with the pre-tokenizer ``smollm``.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    make_tokenizer: Any = PreTrainedTokenizerFast
    kind, cutting = entry(reader, "tokenizer.ggml.model"), entry(reader, "tokenizer.ggml.pre")
    if (kind, cutting) != ("gpt2", "smollm"):
        raise UnsupportedError(f"only tokenizers of kind gpt2/smollm are converted, not {kind}/{cutting}")
    tokens: list[str] = entry(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = entry(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in entry(reader, "tokenizer.ggml.merges")]
    backend = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges, fuse_unk=False)
    )
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    backend.decoder = decoders.ByteLevel()
    control = [token for token, its_kind in zip(tokens, kinds, strict=True) if its_kind == _CONTROL_TOKEN]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    tokenizer: PreTrainedTokenizerFast = make_tokenizer(
        tokenizer_object=backend,
        bos_token=tokens[entry(reader, "tokenizer.ggml.bos_token_id")],
        eos_token=tokens[entry(reader, "tokenizer.ggml.eos_token_id")],
        unk_token=tokens[entry(reader, "tokenizer.ggml.unknown_token_id")],
        pad_token=tokens[entry(reader, "tokenizer.ggml.padding_token_id")],
        model_max_length=int(entry(reader, "llama.context_length")),
        clean_up_tokenization_spaces=False,
        padding_side="left",
        chat_template=entry(reader, "tokenizer.chat_template"),
    )
    return tokenizer
