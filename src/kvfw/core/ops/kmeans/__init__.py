"""Weighted k-means of many heads at once, behind one function."""

from kvfw.core.ops.kmeans.lloyd import clusters_of_heads

__all__ = ["clusters_of_heads"]
