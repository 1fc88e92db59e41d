"""k-means of one head, with the centres that belong to its assignment: easier to check than many heads at once."""

from dataclasses import dataclass

from torch import Tensor

from kvfw.core.ops.cluster_means import weighted_means
from kvfw.core.ops.kmeans.lloyd import clusters_of_heads
from kvfw.core.ops.kmeans.nearest import CHUNK


@dataclass(frozen=True)
class Clusters:
    """A partition of N tokens into K clusters, and their weighted means."""

    assignment: Tensor
    centres: Tensor


def weighted_kmeans(x: Tensor, weights: Tensor, clusters: int, iters: int, *, chunk: int = CHUNK) -> Clusters:
    return _alone(x, weights, clusters, iters, None, chunk)


def blocked_kmeans(
    x: Tensor, weights: Tensor, clusters: int, iters: int, block: int, *, chunk: int = CHUNK
) -> Clusters:
    return _alone(x, weights, clusters, iters, block, chunk)


def _alone(x: Tensor, weights: Tensor, clusters: int, iters: int, block: int | None, chunk: int) -> Clusters:
    (assignment,) = clusters_of_heads(x[None], weights[None], clusters, iters, block, chunk=chunk)
    return Clusters(assignment, weighted_means(x.detach(), weights.detach(), assignment, min(clusters, len(x))))
