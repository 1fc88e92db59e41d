"""Recipes: named compositions of other parts."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (
    PartSpec(Kind.METHOD, "uniform", f"{__name__}.uniform:Uniform", "tokens evenly spaced over the middle"),
    PartSpec(
        Kind.METHOD,
        "streaming",
        f"{__name__}.streaming:Streaming",
        "the contiguous tail of the middle",
        facts={"kvpress": "streaming_llm"},
    ),
    PartSpec(
        Kind.METHOD,
        "criticalkv",
        f"{__name__}.criticalkv:CriticalKV",
        "a scorer, corrected by the values' effect on the output",
        facts={"kvpress": "criticalkv"},
    ),
    PartSpec(Kind.METHOD, "ewmeans_post", f"{__name__}.ewmeans_post:EWMeansPost", "E-Means of the keys as cached"),
    PartSpec(Kind.METHOD, "ewmeans_pre", f"{__name__}.ewmeans_pre:EWMeansPre", "E-Means before RoPE, re-rotated"),
    PartSpec(
        Kind.METHOD,
        "chunkkv",
        f"{__name__}.chunkkv:ChunkKV",
        "whole chunks of tokens, alike in all heads",
        facts={"kvpress": "chunkkv"},
    ),
    PartSpec(
        Kind.METHOD,
        "chunkkv_entropy",
        f"{__name__}.chunkkv_entropy:ChunkKVEntropy",
        "ChunkKV, only the best tokens of spiky chunks",
        facts={"kvpress": "entropy_gated_chunkkv"},
    ),
    PartSpec(
        Kind.METHOD,
        "keydiff_block",
        f"{__name__}.keydiff_block:KeyDiffBlock",
        "KeyDiff block by block",
        facts={"kvpress": "block"},
    ),
    PartSpec(
        Kind.METHOD,
        "snapkv_original",
        f"{__name__}.snapkv_original:SnapKVOriginal",
        "SnapKV as its code falls back to: 32 queries, kernel 5",
    ),
    PartSpec(
        Kind.METHOD,
        "snapkv_longbench",
        f"{__name__}.snapkv_longbench:SnapKVLongBench",
        "SnapKV as its LongBench runs: 32 queries, max pooling 7",
    ),
    PartSpec(
        Kind.METHOD,
        "snapkv_kvpress",
        f"{__name__}.snapkv_kvpress:SnapKVKvpress",
        "SnapKV as in kvpress: 64 queries, kernel 5",
        facts={"kvpress": "snapkv"},
    ),
    PartSpec(
        Kind.METHOD,
        "adakv",
        f"{__name__}.adakv:AdaSnapKV",
        "SnapKV, one ranking over a layer's heads",
        facts={"kvpress": "adakv"},
    ),
    PartSpec(
        Kind.METHOD,
        "pyramidkv",
        f"{__name__}.pyramidkv:PyramidKV",
        "SnapKV, more slots for low layers",
        facts={"kvpress": "pyramidkv"},
    ),
    PartSpec(
        Kind.METHOD, "prefixkv", f"{__name__}.prefixkv:PrefixKV", "attention sums, the same retained mass per layer"
    ),
    PartSpec(
        Kind.METHOD, "zigzagkv", f"{__name__}.zigzagkv:ZigZagKV", "SnapKV, more slots where attention needs more tokens"
    ),
    PartSpec(
        Kind.METHOD,
        "simlayerkv",
        f"{__name__}.simlayerkv:SimLayerKV",
        "few slots for layers that look nearby",
        facts={"kvpress": "simlayerkv"},
    ),
    PartSpec(Kind.METHOD, "headkv", f"{__name__}.headkv:HeadKV", "SnapKV, slots by a file of heads' importance"),
    PartSpec(
        Kind.METHOD,
        "lukv",
        f"{__name__}.lukv:LUKV",
        "Expected Attention, slots by a file's curve",
        facts={"kvpress": "lukv"},
    ),
    PartSpec(Kind.METHOD, "cake", f"{__name__}.cake:CakeKV", "attention's mean and variance, for tokens and layers"),
    PartSpec(
        Kind.METHOD,
        "expected_attention",
        f"{__name__}.expected_attention:ExpectedAdaKV",
        "Expected Attention, one ranking over a layer's heads",
        facts={"kvpress": "expected_attention"},
    ),
    PartSpec(
        Kind.METHOD,
        "h2o_original",
        f"{__name__}.h2o_original:H2OOriginal",
        "half heavy hitters by plain sums, half last tokens",
    ),
    PartSpec(
        Kind.METHOD,
        "kvzip_plus",
        f"{__name__}.kvzip_plus:KVzipPlus",
        "KVzip+, one threshold everywhere",
        facts={"kvpress": "kvzip"},
    ),
    PartSpec(
        Kind.METHOD,
        "streaming_llm",
        f"{__name__}.streaming_llm:StreamingLLM",
        "sinks and last tokens, re-rotated",
        facts={"kvpress": "streaming_llm"},
    ),
    PartSpec(
        Kind.METHOD,
        "duo_attention",
        f"{__name__}.duo_attention:DuoAttention",
        "everything for heads that look far",
        facts={"kvpress": "duo_attention"},
    ),
    PartSpec(
        Kind.METHOD,
        "attention_matching",
        f"{__name__}.attention_matching:AttentionMatching",
        "attention from a probe, then a refit",
    ),
    PartSpec(
        Kind.METHOD,
        "criticaladakv",
        f"{__name__}.criticaladakv:CriticalAdaKV",
        "CriticalKV on SnapKV, one ranking over a layer's heads",
        facts={"kvpress": "criticalada"},
    ),
    PartSpec(Kind.METHOD, "d2o", f"{__name__}.d2o:D2OMethod", "heavy hitters, similar dropped tokens folded in (D2O)"),
    PartSpec(
        Kind.METHOD, "lookm", f"{__name__}.lookm:LookMMethod", "heavy hitters, dropped tokens averaged in (LOOK-M)"
    ),
    PartSpec(
        Kind.METHOD,
        "weightedkv",
        f"{__name__}.weightedkv:WeightedKVMethod",
        "most attended, dropped values into the next token",
    ),
    PartSpec(Kind.METHOD, "keepkv", f"{__name__}.keepkv:KeepKVMethod", "merges that keep attention's output (KeepKV)"),
    PartSpec(
        Kind.METHOD,
        "cam",
        f"{__name__}.cam:CaMMethod",
        "most attended, parts of dropped values added (CaM)",
        facts={"kvpress": "cam"},
    ),
    PartSpec(Kind.METHOD, "kvmerger", f"{__name__}.kvmerger:KVMergerMethod", "runs of similar keys merged (KVMerger)"),
    PartSpec(
        Kind.METHOD,
        "razor",
        f"{__name__}.razor:RazorAttention",
        "far-looking heads whole, one slot for the rest elsewhere",
    ),
    PartSpec(
        Kind.METHOD,
        "mergingpress",
        f"{__name__}.mergingpress:MergingPress",
        "SnapKV, dropped values into similar tokens (kvpress)",
        facts={"kvpress": "merging"},
    ),
)
