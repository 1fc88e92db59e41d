"""Mergers: merge many slots into few."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (PartSpec(Kind.MERGER, "ewmeans", f"{__name__}.ewmeans:EWMeans", "attention-weighted k-means centroids"),)
