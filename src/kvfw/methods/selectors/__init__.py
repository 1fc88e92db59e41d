"""Selectors: which slots to keep, from scores and a budget."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (
    PartSpec(Kind.SELECTOR, "topk", f"{__name__}.topk:TopK", "the highest scores, ties to the lowest position"),
    PartSpec(Kind.SELECTOR, "evenly", f"{__name__}.evenly:Evenly", "evenly spaced ranks of the score order"),
    PartSpec(
        Kind.SELECTOR,
        "critical",
        f"{__name__}.critical:Critical",
        "half by score, half by score times the value's effect on the output",
        facts={"kvpress": "criticalkv"},
    ),
    PartSpec(
        Kind.SELECTOR,
        "chunks",
        f"{__name__}.chunks:ChunksSelector",
        "whole chunks of tokens, alike in all heads",
        facts={"kvpress": "chunkkv"},
    ),
    PartSpec(Kind.SELECTOR, "pages", f"{__name__}.pages:Pages", "whole pages of a paged cache, alike in all heads"),
    PartSpec(
        Kind.SELECTOR,
        "blockwise",
        f"{__name__}.blockwise:Blockwise",
        "block by block, the best of a running set",
        facts={"kvpress": "block"},
    ),
)
