"""The tables of docs/models.md, made of what the checks of families establish. Run this file to write them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import transformers

from helpers.families import DTYPES, FAMILIES, checks, fresh, outcome
from kvfw.model.load.facts import LayerFacts, inspect_config, layer_facts

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- begin: written by tests/helpers/matrix.py -->", "<!-- end -->"

#: A configuration of every kind that cannot be compressed, by what people call it.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "DeepSeek V2, V3": ("DeepseekV3Config", {}),
    "Mamba": ("MambaConfig", {}),
    "RWKV": ("RwkvConfig", {}),
    "Jamba": ("JambaConfig", {}),
    "Qwen 3 Next": ("Qwen3NextConfig", {}),
    "RecurrentGemma": ("RecurrentGemmaConfig", {}),
    "Gemma 3n": ("Gemma3nTextConfig", {}),
    "T5": ("T5Config", {}),
    "BERT": ("BertConfig", {"architectures": ["BertForMaskedLM"]}),
    "StableLM": ("StableLmConfig", {}),
    "Falcon": ("FalconConfig", {}),
    "GPT-J": ("GPTJConfig", {"n_layer": 2}),
    "Mistral 7B v0.1": ("MistralConfig", {}),
}


def refusal(title: str) -> str | None:
    """Why a model is refused; None if it is not."""
    untyped: Any = transformers
    name, changes = REFUSED[title]
    config = getattr(untyped, name)(**changes)
    reason = inspect_config(config, title).refused
    return None if reason is None else reason.replace(f"{title!r} ({config.model_type})", "it").removeprefix("it ")


def tables() -> str:
    """Both tables, as Markdown."""
    return "\n".join([*_families(), "", *_refusals()])


def _families() -> list[str]:
    undone = [f"RoPE {dtype}" for dtype in DTYPES]
    columns = ["full cache", "kept tokens", "attach", "bfloat16", "float16", *undone]
    rows = [f"| family | class | RoPE | attention | {' | '.join(columns)} |", f"|{'---|' * (4 + len(columns))}"]
    for name, title in FAMILIES.items():
        model = fresh(name)
        layers = layer_facts(model)
        cells = [_cell(name, column) for column in columns]
        rows.append(
            f"| {title} | {type(model).__name__} | {_rope(layers)} | {_attention(layers)} | {' | '.join(cells)} |"
        )
    return rows


def _cell(name: str, check: str) -> str:
    if check not in checks(name):
        return "–"
    return "yes" if outcome(name, check) is None else "no"


def _rope(layers: tuple[LayerFacts, ...]) -> str:
    """Every kind of rotation among the layers."""
    found = []
    for layer in layers:
        if layer.rope is None:
            text = "none"
        else:
            part = "" if layer.rope.rotary_dim == layer.key_dim else f", {layer.rope.rotary_dim} of {layer.key_dim}"
            axes = ", several axes" if "mrope_section" in layer.rope.settings else ""
            text = f"{layer.rope.type}, {layer.rope.layout}{part}{axes}"
        found.append(text)
    bases = {layer.rope.base for layer in layers if layer.rope is not None}
    tables = f"; {len(bases)} tables" if len(bases) > 1 else ""
    return " / ".join(dict.fromkeys(found)) + tables


def _attention(layers: tuple[LayerFacts, ...]) -> str:
    kinds = " / ".join(sorted({layer.attention for layer in layers}))
    capped = "; logits capped" if any(layer.softcap is not None for layer in layers) else ""
    return kinds + capped + ("; sinks" if any(layer.sinks for layer in layers) else "")


def _refusals() -> list[str]:
    rows = ["| model | refused because it |", "|---|---|"]
    return rows + [f"| {title} | {refusal(title)} |" for title in REFUSED]


def committed() -> str:
    """The tables as the page has them."""
    return PAGE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]


def write() -> None:
    """Puts the tables into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    write()
    sys.exit(any(" no |" in line for line in committed().splitlines()))
