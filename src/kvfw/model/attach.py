"""``kvfw.attach``: compression inside plain ``model.generate()``."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvfw.core.allocate import Uniform
from kvfw.core.budget import amount, check_counts
from kvfw.core.compressor import compressor
from kvfw.core.interfaces import Allocator
from kvfw.core.registry import Registry
from kvfw.core.spec import Composition, parse
from kvfw.errors import UnsupportedError
from kvfw.model.cache import CompressedCache
from kvfw.model.session import Plan, Session, new_cache


@contextmanager
def attach(
    model: PreTrainedModel,
    composition: str | Composition,
    *,
    ratio: str | float | Fraction | None = None,
    slots: int | None = None,
    keep: str | float | Fraction | None = None,
    sinks: int = 4,
    recent: int = 84,
    prompt_tokens: int | None = None,
    recompress: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    allocator: Allocator | None = None,
    registry: Registry | None = None,
) -> Iterator[CompressedCache]:
    """Compresses the prompt's KV cache inside the block; everything is restored on exit, also after an exception.

    ::

        with kvfw.attach(model, "snapkv:0.8+ewmeans_pre:0.2", ratio=4) as cache:
            out = model.generate(**inputs, cache=cache, max_new_tokens=64)
        print(cache.report())

    One block serves one prompt (or one batch of prompts, padded on the left) and what follows it. The first forward
    into the empty cache is the prompt; each layer is compressed right after its own attention. The
    first response token comes from the prompt's own, uncompressed logits. Later tokens stay exact.

    Args:
        model: a decoder-only Hugging Face model.
        composition: text or parsed composition.
        ratio, slots, keep: exactly one: times smaller the middle becomes; slots per KV head in all, sinks and recent
            included; fraction of the middle kept.
        sinks, recent: first and last tokens of the prompt that are always kept.
        prompt_tokens: length of the prompt, for chunked prefill: compress once so many tokens were seen.
        recompress: compress again at the end of every later turn of more than one token.
        tokenizer: needed by lexical scorers only.
        allocator: divides the budget over layers and heads; uniform by default.
        registry: where part names are looked up; the installed parts by default.

    Yields:
        The cache to pass to ``generate`` or to the model's forward.

    Raises:
        SpecError, BudgetError, UnsupportedError: before the model runs.
    """
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedError(
            f"attach takes a transformers model, not {type(model).__name__}; of what load_model returns, pass .model"
        )
    check_counts(sinks, recent)
    parsed = parse(str(composition), registry)
    bound = compressor(
        parsed,
        amount(ratio=ratio, slots=slots, keep=keep),
        sinks=sinks,
        recent=recent,
        registry=registry,
    )
    plan = Plan(
        needs=bound.needs,
        sinks=sinks,
        recent=recent,
        compressor=bound,
        prompt_tokens=prompt_tokens,
        recompress=recompress,
        allocator=allocator if allocator is not None else Uniform(),
        vocabulary=tokenizer,
    )
    cache = new_cache(model)
    with Session(model, cache, plan).running():
        yield cache
    if not any(layer.compressed for layer in cache.compressed_layers()):
        said = "no prompt went through it" if not cache.get_seq_length() else "the prompt did not end in it"
        warnings.warn(
            f"kvfw.attach compressed nothing: {said}. Pass the cache to the model (cache=cache); check prompt_tokens",
            stacklevel=3,
        )
