"""Recipes: named compositions of other parts."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (
    PartSpec(Kind.METHOD, "uniform", f"{__name__}.uniform:Uniform", "tokens evenly spaced over the middle"),
    PartSpec(Kind.METHOD, "streaming", f"{__name__}.streaming:Streaming", "the contiguous tail of the middle"),
    PartSpec(
        Kind.METHOD,
        "criticalkv",
        f"{__name__}.criticalkv:CriticalKV",
        "a scorer, corrected by the values' effect on the output",
    ),
    PartSpec(Kind.METHOD, "ewmeans_post", f"{__name__}.ewmeans_post:EWMeansPost", "E-Means of the keys as cached"),
    PartSpec(Kind.METHOD, "ewmeans_pre", f"{__name__}.ewmeans_pre:EWMeansPre", "E-Means before RoPE, re-rotated"),
    PartSpec(Kind.METHOD, "chunkkv", f"{__name__}.chunkkv:ChunkKV", "whole chunks of tokens, alike in all heads"),
    PartSpec(
        Kind.METHOD,
        "chunkkv_entropy",
        f"{__name__}.chunkkv_entropy:ChunkKVEntropy",
        "ChunkKV, only the best tokens of spiky chunks",
    ),
    PartSpec(Kind.METHOD, "keydiff_block", f"{__name__}.keydiff_block:KeyDiffBlock", "KeyDiff block by block"),
)
