"""``kvfw.attach``: compression inside plain ``model.generate()``."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvfw.core.compose.budget import amount, check_counts
from kvfw.core.compose.composition import Composition, parse
from kvfw.core.compress.compressor import check_pools, compressor
from kvfw.core.contracts.parts import Allocator
from kvfw.core.state.lexical import Vocabulary
from kvfw.core.state.observation import Needs
from kvfw.errors import BudgetError, OptionError, SpecError, UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.calibrated import check_calibrated
from kvfw.model.cache.fingerprint import check_same_model, fingerprint
from kvfw.model.compat.versions import cache_name
from kvfw.model.inspect.layers import anatomy, text_config
from kvfw.model.inspect.support import check_is_model
from kvfw.model.session.plan import SessionPlan
from kvfw.model.session.session import Session, new_cache


@contextmanager
def attach(
    model: PreTrainedModel,
    composition: str | Composition | None = None,
    *,
    ratio: str | float | Fraction | None = None,
    slots: int | None = None,
    keep: str | float | Fraction | None = None,
    sinks: int = 4,
    recent: int = 84,
    prompt_tokens: int | None = None,
    recompress: bool = False,
    compress_every: int | None = None,
    cache: CompressedCache | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    probe_ids: Sequence[int] | None = None,
    allocator: Allocator | None = None,
) -> Iterator[CompressedCache]:
    """Compresses the prompt's KV cache inside the block; everything is restored on exit, also after an exception.

    ::

        with kvfw.attach(model, "snapkv:0.8+ewmeans_pre:0.2", ratio=4) as cache:
            out = model.generate(**inputs, cache=cache, max_new_tokens=64)
        print(cache.report())

    One block serves one prompt (or one batch of prompts, padded on the left) and its continuation. The first forward
    into the empty cache is the prompt; each layer is compressed right after its own attention. The first response token
    comes from the prompt's own, uncompressed logits. Later tokens stay exact, unless ``recompress`` or
    ``compress_every`` is set.

    Later turns use the same cache: call ``generate`` again inside the block, with all ids so far and the new ones, or
    with the new ones and an attention mask over all.

    Args:
        model: a decoder-only Hugging Face model.
        composition: text, whose names are looked up among the installed parts, or the result of :func:`kvfw.parse`.
            May be omitted with ``cache``: then nothing more is compressed.
        ratio, slots, keep: exactly one: factor by which the middle shrinks; slots per KV head in total, sinks and
            recent included; fraction of the middle kept.
        sinks, recent: first and last tokens that are always kept, of all tokens so far at each compression.
        prompt_tokens: length of the prompt, for chunked prefill: compress once this many tokens were seen. For later
            turns call ``cache.expect(tokens)``.
        recompress: compress again at the end of every later turn of more than one token, to the amount for all tokens
            seen so far. Masses add up.
        compress_every: compress again while decoding, after any forward that brings the tokens added since the last
            compression to this number or more. ``slots=`` compresses to that number of slots, and no head ever holds
            more than ``slots + compress_every`` while tokens come one by one. ``ratio=`` and ``keep=`` compress to the
            size of the compressed prompt (with ``recompress``: of the last turn). Sinks and recent tokens included.
        cache: a compressed cache to continue, from an earlier block or :func:`kvfw.load_cache`, instead of an empty one
            for a new prompt. ``ratio`` and ``keep`` then count from the tokens it has seen.
        tokenizer: needed by compositions that look at the prompt's text (``pinned``) or probe the model (``kvzip``).
        probe_ids: token ids that a probe feeds, in place of its text.
        allocator: an object that divides the budget over layers and heads, in place of one in the composition (``@``).

    Yields:
        The cache to pass to ``generate`` or to the model's forward.

    Raises:
        SpecError, BudgetError, OptionError, UnsupportedError: before the model runs. While it runs: BudgetError for a
            prompt too short for its amount, RunError for keys that are not finite, UnsupportedError for what cannot be
            done correctly.
    """
    check_is_model(model, "attach")
    plan = _plan(
        model,
        composition,
        {"ratio": ratio, "slots": slots, "keep": keep},
        sinks=sinks,
        recent=recent,
        prompt_tokens=prompt_tokens,
        recompress=recompress,
        compress_every=compress_every,
        tokenizer=tokenizer,
        probe_ids=None if probe_ids is None else _checked_ids(model, probe_ids),
        allocator=allocator,
    )
    used = new_cache(model)
    if cache is not None:
        check_taken_up(cache, model)
        used = cache
    elif composition is None:
        raise SpecError("there is no composition; without one, pass the compressed cache to go on with (cache=)", "", 0)
    with Session(model, used, plan).running() as session:
        yield used
    if not session.has_compressed and not any(layer.compressed for layer in used.compressed_layers()):
        said = "no prompt went through it" if not used.get_seq_length() else "the prompt did not end in it"
        warnings.warn(
            f"kvfw.attach compressed nothing: {said}. Pass the cache to the model ({cache_name(model)}=cache); check "
            "prompt_tokens",
            stacklevel=3,
        )


def _plan(
    model: PreTrainedModel,
    composition: str | Composition | None,
    amounts: dict[str, Any],
    *,
    sinks: int,
    recent: int,
    tokenizer: PreTrainedTokenizerBase | None,
    probe_ids: tuple[int, ...] | None,
    allocator: Allocator | None,
    **later: Any,
) -> SessionPlan:
    """The plan of a block; a request that is wrong in itself raises as in :func:`attach`."""
    check_counts(sinks, recent)
    _check_options(later["recompress"], tokenizer, allocator)
    if composition is None:
        said = {**amounts, **later, "allocator": allocator, "probe_ids": probe_ids}
        if named := [f"{name}=" for name, value in said.items() if value is not None and value is not False]:
            raise BudgetError(f"without a composition nothing is compressed; leave out {', '.join(named)}, or say one")
        return SessionPlan(needs=Needs(), sinks=sinks, recent=recent)
    asked = composition if isinstance(composition, Composition) else parse(str(composition))
    if allocator is not None:
        asked = asked.allocated_by(allocator)
    bound = compressor(asked, amount(**amounts), sinks=sinks, recent=recent, depth=len(anatomy(model).layers))
    check_calibrated(asked.parts, lambda: fingerprint(model))
    check_pools(bound, {part.index: part.kv_heads for part in anatomy(model).compressible})
    return SessionPlan(
        needs=bound.needs,
        sinks=sinks,
        recent=recent,
        compressor=bound,
        vocabulary=tokenizer,
        probe_ids=probe_ids,
        **later,
    )


def _checked_ids(model: PreTrainedModel, ids: object) -> tuple[int, ...]:
    """The ids of a probe; an OptionError if they are none of the model's tokens."""
    known = int(text_config(model).vocab_size)
    given = ids.tolist() if hasattr(ids, "tolist") else ids
    if not isinstance(given, list | tuple) or not given or not all(type(i) is int and 0 <= i < known for i in given):
        raise OptionError(
            f"probe_ids is {str(ids)[:60]!r}; it is a list of one token id or more, whole numbers from 0 to {known - 1}"
        )
    return tuple(given)


def _check_options(recompress: object, tokenizer: object, allocator: object) -> None:
    """Raises OptionError for values of a wrong type, which would fail late or mean something else."""
    if not isinstance(recompress, bool):
        raise OptionError(f"recompress is {recompress!r}; it is True or False")
    if tokenizer is not None and (isinstance(tokenizer, type) or not isinstance(tokenizer, Vocabulary)):
        raise OptionError(f"tokenizer is {tokenizer!r}; it is the model's tokenizer, as load_model(...).tokenizer")
    if allocator is not None and (isinstance(allocator, type) or not isinstance(allocator, Allocator)):
        raise OptionError(
            f"allocator is {allocator!r}; it is an object with a method allocate(total, layers), or None for uniform"
        )


def check_taken_up(cache: CompressedCache, model: PreTrainedModel) -> None:
    """Refuses a cache that a block with this model could not continue.

    Raises:
        UnsupportedError: it is no compressed cache, in use, from another model, made with other adapters, or nothing
            was compressed in it.
    """
    if not isinstance(cache, CompressedCache):
        raise UnsupportedError(
            f"cache= takes a cache that kvfw.attach or kvfw.load_cache gave, not {type(cache).__name__}"
        )
    if any(layer.attached for layer in cache.compressed_layers()):
        raise UnsupportedError("this cache belongs to a block that is still open; go on inside that block")
    cache.check_whole()
    check_same_model(cache, model)
    if not all(layer.compressed for layer in cache.compressed_layers()):
        raise UnsupportedError(
            "no prompt was compressed in this cache; leave out cache= and pass generate the cache that the block gives"
        )
