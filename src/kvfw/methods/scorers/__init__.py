"""Scorers: a score per slot and KV head."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (
    PartSpec(Kind.SCORER, "snapkv", f"{__name__}.snapkv:SnapKV", "pooled attention from the last queries"),
    PartSpec(Kind.SCORER, "h2o", f"{__name__}.h2o:H2O", "attention received over the whole prompt, per exposure"),
    PartSpec(Kind.SCORER, "pinned", f"{__name__}.pinned:Pinned", "lexical rarity times attention"),
    PartSpec(Kind.SCORER, "position", f"{__name__}.position:Position", "the later the token, the higher"),
    PartSpec(Kind.SCORER, "kvzip", f"{__name__}.kvzip:KVzip", "largest attention while the prompt is repeated"),
    PartSpec(
        Kind.SCORER, "probed", f"{__name__}.probed:AttentionFromProbe", "attention from a probe, by its mean square"
    ),
    PartSpec(Kind.SCORER, "shifting", f"{__name__}.shifting:Shifting", "attention that is high or changes (CAKE)"),
    PartSpec(Kind.SCORER, "kvzap", f"{__name__}.kvzap:KVzap", "a learned guess of what kvzip(plus=true) would give"),
    PartSpec(Kind.SCORER, "knorm", f"{__name__}.knorm:KNorm", "short keys first"),
    PartSpec(Kind.SCORER, "keydiff", f"{__name__}.keydiff:KeyDiff", "keys unlike the mean of all keys"),
    PartSpec(Kind.SCORER, "tova", f"{__name__}.tova:TOVA", "attention of the last token, mean over all heads"),
    PartSpec(Kind.SCORER, "vatp", f"{__name__}.vatp:VATP", "attention times the value's norm"),
    PartSpec(Kind.SCORER, "cur", f"{__name__}.cur:CUR", "long keys and values beside their neighbours'"),
    PartSpec(Kind.SCORER, "lagkv", f"{__name__}.lagkv:LagKV", "tokens that stand out beside those that follow"),
    PartSpec(Kind.SCORER, "random", f"{__name__}.random:Random", "uniform random numbers, seeded"),
    PartSpec(Kind.SCORER, "leverage", f"{__name__}.leverage:Leverage", "keys that other keys do not span"),
    PartSpec(Kind.SCORER, "noncausal", f"{__name__}.noncausal:NonCausal", "unmasked attention inside chunks"),
    PartSpec(Kind.SCORER, "compactor", f"{__name__}.compactor:Compactor", "leverage and unmasked attention, blended"),
    PartSpec(
        Kind.SCORER, "capkv", f"{__name__}.capkv:CapKV", "values of their own direction, weighed by expected queries"
    ),
    PartSpec(Kind.SCORER, "qfilters", f"{__name__}.qfilters:QFilters", "keys in the main direction of the queries"),
    PartSpec(Kind.SCORER, "rkv", f"{__name__}.rkv:RKV", "attended tokens whose keys do not repeat others"),
    PartSpec(Kind.SCORER, "morphkv", f"{__name__}.morphkv:MorphKV", "largest joint attention of the last queries"),
    PartSpec(Kind.SCORER, "kvcompose", f"{__name__}.kvcompose:KVCompose", "attention from a probe, shared over heads"),
    PartSpec(Kind.SCORER, "dropkv", f"{__name__}.dropkv:DropKV", "exact change of the output without a token"),
    PartSpec(
        Kind.SCORER, "expected", f"{__name__}.expected:ExpectedAttention", "attention to expect from queries to come"
    ),
)
