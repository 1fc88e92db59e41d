"""Checks whether a forward may continue a cache."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kvfw.errors import PromptError, UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.hiding import WAY_OUT, hide
from kvfw.model.cache.layer import NOT_CROPPABLE, CompressedLayer
from kvfw.model.session.place import text_positions

#: Arguments of a forward that hold images or audio.
OTHER_THAN_TEXT = ("pixel_values", "pixel_values_videos", "image_embeds", "input_features", "mm_encoder_outputs")

#: Arguments of ``generate`` that make it crop the cache.
ROLL_BACK = ("assistant_model", "prompt_lookup_num_tokens")


def check_generate(cache: CompressedCache, given: Mapping[str, Any]) -> None:
    """Refuses a call of ``generate`` that would roll the cache back, or whose ids do not begin with those in the cache.

    It would only slice off as many ids as the cache has seen.

    Raises:
        UnsupportedError: assisted decoding or prompt lookup.
        PromptError: naming the first token that differs.
    """
    # Before the model runs: older releases of transformers crop only once the prompt is compressed.
    config = given.get("generation_config")
    if any(given.get(name) is not None or getattr(config, name, None) is not None for name in ROLL_BACK):
        raise UnsupportedError(NOT_CROPPABLE)
    ids, mask = given.get("input_ids", given.get("inputs")), given.get("attention_mask")
    at, seen, known = cache.seen_at, cache.get_seq_length(), cache.compressed_layers()[0].captured.seen_ids
    if at is None or known is None or not isinstance(ids, Tensor) or ids.ndim != 2 or ids.shape[1] <= seen:
        return
    alone = isinstance(mask, Tensor) and mask.shape[1] != ids.shape[1]
    if alone or len(known) % max(len(ids), 1):
        return  # only the new ids, with a mask over all; or a number of rows that is refused later
    repeats = len(known) // len(ids)
    other = (ids[:, :seen].to(known.device).repeat_interleave(repeats, dim=0) != known) & (at >= 0)
    if isinstance(mask, Tensor):
        other = other & (mask[:, :seen].to(other.device) != 0).repeat_interleave(repeats, dim=0)
    if not bool(other.any()):
        return
    row, token = other.nonzero()[0].tolist()
    raise PromptError(
        f"the ids given to generate do not begin with the {seen} tokens that the cache has seen: row {row} differs "
        f"from token {token} on. For a further turn pass all ids so far, the answer's too, with the new ones; a new "
        "prompt needs a block of its own, as does every prompt of a pipeline"
    )


def check_inputs(given: Mapping[str, Any]) -> None:
    """Refuses a forward with arguments that no compressed cache supports.

    Raises:
        UnsupportedError: images or audio; a mask that is not of rows and tokens; ``use_cache=False``.
    """
    # For text alone, generate passes an empty mapping of encoder outputs.
    others = {name: given[name] for name in OTHER_THAN_TEXT if given.get(name) is not None}
    if named := [name for name, value in others.items() if not isinstance(value, Mapping) or value]:
        raise UnsupportedError(
            f"{', '.join(named)}: kvfw compresses prompts of text only; run others outside the block"
        )
    if given.get("use_cache") is False:
        raise UnsupportedError(
            "use_cache is False, so that generate feeds all ids again at every step; pass use_cache=True, or set "
            "model.generation_config.use_cache = True, which training leaves off"
        )
    mask, positions = given.get("attention_mask"), given.get("position_ids")
    if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 2):
        shape = f"of {mask.ndim} dimensions" if isinstance(mask, Tensor) else f"({type(mask).__name__})"
        raise UnsupportedError(
            f"an attention mask {shape} says what each token sees, slot by slot, and slots are not tokens after "
            "compression; pass one of rows and tokens, and candidates as rows (cache.batch_repeat_interleave)"
        )
    if isinstance(positions, Tensor) and positions.ndim == 3 and not bool((positions == positions[:1]).all()):
        raise UnsupportedError(
            "position_ids differ from axis to axis, as for images, and keys turned by several angles cannot be turned "
            "back by one; kvfw compresses prompts of text only"
        )


def check_tokens(new: int, seen: int, mask: Any) -> None:
    """Refuses a forward of ``new`` tokens into a cache of ``seen`` ones if their numbers cannot be right.

    Raises:
        PromptError: it feeds no token.
        UnsupportedError: its mask has another number of tokens.
    """
    if new == 0 and seen == 0:
        raise PromptError("the prompt has no tokens; give the model at least one")
    over_all = f"an attention mask over all {seen + new if new else f'{seen} tokens so far and the new ones'}"
    if new == 0:
        raise PromptError(
            f"no new token reached the model, after {seen} in the cache. For a further turn pass generate all ids so "
            f"far with the new ones, or the new ones with {over_all}; a new prompt needs a block of its own"
        )
    if isinstance(mask, Tensor) and mask.shape[1] != seen + new:
        raise UnsupportedError(
            f"the attention mask speaks of {mask.shape[1]} tokens; the cache has seen {seen} and {new} are new, so "
            f"pass {over_all}"
        )


def go_on(cache: CompressedCache, given: Tensor, position_ids: Any, mask: Tensor | None) -> None:
    """Prepares a cache for tokens that follow those it has seen, and drops tokens that the mask now hides.

    Args:
        cache: the cache; a refusal leaves it unchanged.
        given: ids ``[B, n]`` or embeddings ``[B, n, E]``.
        position_ids: ``[B or 1, n]`` or ``[axes, B or 1, n]``; None: where the cache ends.
        mask: ``[B, seen + n]`` or None.

    Raises:
        PromptError: another number of rows than stored; or a row's first new position is not after its last.
        UnsupportedError: the mask hides what cannot be dropped, or shows what is gone.
    """
    layers = cache.compressed_layers()
    rows, (fed, count) = layers[0].storage.rows, given.shape[:2]
    if fed != rows:
        raise PromptError(
            f"{fed} rows of tokens were fed to a cache of {rows}. For several answers to what it holds, beams too, "
            "repeat its rows first: cache.batch_repeat_interleave(n); other prompts need a block of their own"
        )
    last = layers[0].storage.last()
    first, changed = _first(given, position_ids, mask, count).to(last.device), None
    fine = (first > last).all()
    if mask is not None:
        changed = _changed(cache, mask[:, :-count].to(last.device) != 0)
        fine = fine & ~changed.any()
    if bool(fine):  # the only synchronisation with the device in the usual case
        return
    left = layers
    if changed is not None and bool(changed.any()):
        at = _places(cache, changed)
        left = [hide(layer, at, changed) for layer in layers]
        last = at.masked_fill(changed, -1.0).amax(1)
    if not bool((first > last).all()):
        row = int((first <= last).nonzero()[0])
        raise PromptError(
            f"the cache holds tokens up to position {last[row]:.0f}, and a new one is to stand at position "
            f"{first[row]:.0f}: the ids do not go on where it ends. For a further turn pass generate all ids so far, "
            "the answer's too, with the new ones; after a mask that hides earlier tokens, position_ids that go on; a "
            "new prompt needs a block of its own"
        )
    for layer, thinned in zip(layers, left, strict=True):
        layer.captured, layer.storage = thinned.captured, thinned.storage


def _first(given: Tensor, position_ids: Any, mask: Tensor | None, count: int) -> Tensor:
    """Position ``[B]`` of every row's first new token."""
    if not isinstance(position_ids, Tensor):
        return torch.full((len(given),), torch.inf, device=given.device)
    positions = text_positions(position_ids, count).expand(len(given), count)
    return (positions if mask is None else positions.masked_fill(mask[:, -count:] == 0, torch.inf)).amin(1)


def _changed(cache: CompressedCache, visible: Tensor) -> Tensor:
    """Tokens ``[B, seen]`` whose visibility changed; else, if unknown singly, rows ``[B, 1]`` whose count did."""
    if cache.seen_at is None:
        return (visible.sum(1) != cache.compressed_layers()[0].captured.tokens)[:, None]
    return visible != (cache.seen_at >= 0)


def _places(cache: CompressedCache, hidden: Tensor) -> Tensor:
    """Positions of all tokens; UnsupportedError if a hidden one is to be shown again or single tokens are unknown."""
    at = cache.seen_at
    if at is not None and not bool((hidden & (at < 0)).any()):
        return at
    why = "hides tokens of the cache" if at is None else "shows tokens of the cache that were hidden"
    raise UnsupportedError(
        f"the attention mask {why}, and their slots are not known any more; hide them in a copy (cache.copy()), or "
        f"{WAY_OUT}"
    )


def own_layer(cache: CompressedCache, index: object, key: Tensor) -> CompressedLayer | None:
    """The layer of ``cache`` that these keys came from; None for another cache or a sliding-window layer."""
    if not isinstance(index, int) or index >= len(cache.layers):
        return None
    layer = cache.layers[index]
    return layer if isinstance(layer, CompressedLayer) and layer.storage.handed is key else None
