"""Formats the findings of ``kvfw models check``."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from kvfw.model.load.facts import LayerFacts, ModelFacts, RopeFacts


def facts_values(facts: ModelFacts) -> dict[str, Any]:
    """All facts as JSON values, layer by layer, and bytes per token unless the model is refused."""
    layers = [{"index": at, "compressed": layer.compressed, **asdict(layer)} for at, layer in enumerate(facts.layers)]
    full, sliding = facts.bytes_per_token("full"), facts.bytes_per_token("sliding")
    per_token = {"compressed_bytes_per_token": full, "sliding_bytes_per_token": sliding}
    return {**asdict(facts), "layers": layers, **(per_token if facts.refused is None else {})}


def facts_text(facts: ModelFacts) -> str:
    """A short text in which identical layers share an entry."""
    return "\n".join(_lines(facts))


def _lines(facts: ModelFacts) -> Iterator[str]:
    head = [f"{facts.architecture} ({facts.model_type})" if facts.architecture is not None else facts.model_type]
    if facts.layers:
        head.append(f"{len(facts.layers)} layers")
    if facts.query_heads is not None:
        head.append(f"{facts.query_heads} query heads")
    if facts.positions is not None:
        head.append(f"{facts.positions} positions")
    yield f"{facts.model}: {', '.join(head)}"
    if facts.refused is not None:
        yield f"refused: {facts.refused}"
        return
    for layer, places in _alike(facts.layers):
        yield f"layers {_ranges(places)}" if len(places) > 1 else f"layer {places[0]}"
        yield f"  {_attention(layer)}"
        size = str(layer.key_dim) if layer.key_dim == layer.value_dim else f"{layer.key_dim} (values {layer.value_dim})"
        yield f"  {layer.kv_heads} KV heads of size {size}"
        yield f"  {_rope(layer.rope, layer.key_dim)}"
    yield f"bytes per token ({facts.dtype}): {facts.bytes_per_token('full')} in layers that are compressed"
    if sliding := facts.bytes_per_token("sliding"):
        yield f"  and {sliding} in sliding-window layers, up to their window"


def _alike(layers: tuple[LayerFacts, ...]) -> list[tuple[LayerFacts, list[int]]]:
    """The distinct layers in order of appearance, each with its indices."""
    firsts = [layer for at, layer in enumerate(layers) if layer not in layers[:at]]
    return [(layer, [at for at, other in enumerate(layers) if other == layer]) for layer in firsts]


def _ranges(places: list[int]) -> str:
    """``0-4, 6``."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _attention(layer: LayerFacts) -> str:
    if layer.compressed:
        text = "full attention: compressed"
    else:
        window = f" of {layer.window} tokens" if layer.window is not None else ""
        text = f"sliding window{window}: left as it is"
    if layer.softcap is not None:
        text += f"; logits capped at {layer.softcap:g}"
    return text + ("; heads have attention sinks of their own" if layer.sinks else "")


def _rope(rope: RopeFacts | None, size: int) -> str:
    if rope is None:
        return "no rotation"
    text = f"RoPE {rope.type}, {rope.layout} layout, {rope.rotary_dim} of {size} coordinates"
    if rope.base is not None:
        text += f", base {rope.base:g}"
    if rope.attention_factor != 1:
        text += f", attention factor {rope.attention_factor:.4g}"
    return text + "".join(f", {key} {_short(value)}" for key, value in rope.settings.items())


def _short(value: Any) -> str:
    """A setting; of a long list, its ends."""
    if isinstance(value, list) and len(value) > 4:
        return f"[{value[0]} ... {value[-1]}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
