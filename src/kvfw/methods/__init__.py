"""kvfw's own parts, announced through the same hook that plugins use. Nothing here imports torch."""

from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.hooks import hookimpl


@hookimpl
def kvfw_parts() -> tuple[PartSpec, ...]:
    """The built-in stage forms, scorers, selectors, mergers, spaces, allocators and methods."""
    here, core = "kvfw.methods", "kvfw.core.compress.stages"
    return (
        PartSpec(Kind.STAGE, "select", f"{core}:Select", "keep the tokens a selector chooses by a scorer's scores"),
        PartSpec(Kind.STAGE, "merge", f"{core}:Merge", "merge all that is left into few slots, in a space"),
        PartSpec(Kind.SCORER, "snapkv", f"{here}.scorers.snapkv:SnapKV", "pooled attention from the last queries"),
        PartSpec(
            Kind.SCORER, "h2o", f"{here}.scorers.h2o:H2O", "attention received over the whole prompt, per exposure"
        ),
        PartSpec(Kind.SCORER, "pinned", f"{here}.scorers.pinned:Pinned", "lexical rarity times attention"),
        PartSpec(Kind.SCORER, "position", f"{here}.scorers.position:Position", "the later the token, the higher"),
        PartSpec(
            Kind.SELECTOR, "topk", f"{here}.selectors.topk:TopK", "the highest scores, ties to the lowest position"
        ),
        PartSpec(Kind.SELECTOR, "evenly", f"{here}.selectors.evenly:Evenly", "evenly spaced ranks of the score order"),
        PartSpec(Kind.MERGER, "ewmeans", f"{here}.mergers.ewmeans:EWMeans", "attention-weighted k-means centroids"),
        PartSpec(Kind.SPACE, "post", f"{here}.spaces.post:Post", "keys as cached, after RoPE"),
        PartSpec(Kind.SPACE, "pre", f"{here}.spaces.pre:Pre", "keys with RoPE undone"),
        PartSpec(Kind.METHOD, "uniform", f"{here}.recipes.uniform:Uniform", "tokens evenly spaced over the middle"),
        PartSpec(Kind.METHOD, "streaming", f"{here}.recipes.streaming:Streaming", "the contiguous tail of the middle"),
        PartSpec(Kind.SCORER, "kvzip", f"{here}.scorers.kvzip:KVzip", "largest attention while the prompt is repeated"),
        PartSpec(Kind.ALLOCATOR, "uniform", f"{here}.allocators.uniform:UniformBudgets", "the same number everywhere"),
        PartSpec(Kind.ALLOCATOR, "pyramid", f"{here}.allocators.pyramid:Pyramid", "more slots for low layers"),
        PartSpec(Kind.ALLOCATOR, "adakv", f"{here}.allocators.adakv:AdaKV", "one ranking over the heads of a layer"),
        PartSpec(
            Kind.ALLOCATOR,
            "global",
            f"{here}.allocators.global_threshold:GlobalThreshold",
            "one threshold everywhere",
        ),
        PartSpec(Kind.REFINER, "refit", f"{here}.refiners.refit:Refit", "biases and values anew, by least squares"),
        PartSpec(
            Kind.METHOD, "ewmeans_post", f"{here}.recipes.ewmeans_post:EWMeansPost", "E-Means of the keys as cached"
        ),
        PartSpec(
            Kind.METHOD, "ewmeans_pre", f"{here}.recipes.ewmeans_pre:EWMeansPre", "E-Means before RoPE, re-rotated"
        ),
    )
