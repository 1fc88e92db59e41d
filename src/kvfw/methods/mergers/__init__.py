"""Mergers: merge many slots into few."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (
    PartSpec(Kind.MERGER, "ewmeans", f"{__name__}.ewmeans:EWMeans", "attention-weighted k-means centroids"),
    PartSpec(
        Kind.MERGER,
        "nearest",
        f"{__name__}.nearest:NearestValue",
        "values into the token of most similar key",
        facts={"kvpress": "merging"},
    ),
    PartSpec(Kind.MERGER, "d2o", f"{__name__}.d2o:D2O", "dropped tokens into similar kept ones (D2O)"),
    PartSpec(
        Kind.MERGER, "lookm", f"{__name__}.lookm:LookM", "dropped tokens into the most similar kept ones (LOOK-M)"
    ),
    PartSpec(Kind.MERGER, "weightedkv", f"{__name__}.weightedkv:WeightedKV", "values into the next kept token"),
    PartSpec(Kind.MERGER, "keepkv", f"{__name__}.keepkv:KeepKV", "merges that keep attention's output (KeepKV)"),
    PartSpec(
        Kind.MERGER,
        "cam",
        f"{__name__}.cam:CaM",
        "adds parts of dropped values to the next kept ones (CaM)",
        facts={"kvpress": "cam"},
    ),
    PartSpec(Kind.MERGER, "kvmerger", f"{__name__}.kvmerger:KVMerger", "runs of similar keys, Gaussian weights"),
    PartSpec(
        Kind.MERGER, "compensation", f"{__name__}.compensation:Compensation", "one slot for all but the heaviest tokens"
    ),
)
