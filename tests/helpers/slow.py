"""The methods read aloud: loops over Python floats, one row and head at a time, nothing shared with kvfw."""

import cmath
import math
from collections.abc import Sequence

from torch import Tensor

Vector = list[float]


def slow_rotate(
    key: Sequence[float], position: float, inv_freq: Sequence[float], scaling: float, layout: str
) -> Vector:
    """Each pair of coordinates as one complex number, turned by ``position * inv_freq``."""
    half = len(inv_freq)
    out = list(key)
    for i, frequency in enumerate(inv_freq):
        x, y = (i, i + half) if layout == "half" else (2 * i, 2 * i + 1)
        turned = complex(key[x], key[y]) * cmath.exp(1j * position * frequency) * scaling
        out[x], out[y] = turned.real, turned.imag
    return out


def softmax(logits: Sequence[float]) -> Vector:
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow_attention(queries: Tensor, keys: Tensor, scale: float) -> list[Vector]:
    """``[L][L]`` causal attention of one query head over one KV head."""
    q, k = queries.tolist(), keys.tolist()
    length = len(k)
    return [softmax([scale * dot(q[i], k[j]) for j in range(i + 1)]) + [0.0] * (length - i - 1) for i in range(length)]


def slow_window_attention(queries: Tensor, keys: Tensor, scale: float, window: int) -> Vector:
    """Mean over the last ``window`` queries and over the query heads ``[g, L, D]`` of one KV head."""
    length = keys.shape[0]
    w = min(window, length)
    maps = [slow_attention(head, keys, scale) for head in queries]
    return [
        sum(sum(attention[i][j] for i in range(length - w, length)) / w for attention in maps) / len(maps)
        for j in range(length)
    ]


def slow_received(queries: Tensor, keys: Tensor, scale: float, local: int) -> Vector:
    """Attention each key got from queries at least ``local`` later, mean over the query heads of one KV head."""
    length = keys.shape[0]
    maps = [slow_attention(head, keys, scale) for head in queries]
    return [
        sum(attention[i][j] for attention in maps for i in range(j + local, length)) / len(maps) for j in range(length)
    ]


def slow_pool(middle: Sequence[float], kernel: int, pool: str) -> Vector:
    """Stride 1, padding ``kernel // 2``; the average counts the zero padding."""
    reach = kernel // 2
    pooled = []
    for i in range(len(middle)):
        seen = [middle[j] for j in range(i - reach, i + reach + 1) if 0 <= j < len(middle)]
        pooled.append(sum(seen) / kernel if pool == "avg" else max(seen))
    return pooled


def slow_snapkv(
    queries: Tensor,
    keys: Tensor,
    scale: float,
    *,
    window: int,
    kernel: int,
    pool: str,
    sinks: int,
    recent: int,
) -> Vector:
    """Scores of the middle's tokens of one KV head."""
    scores = slow_window_attention(queries, keys, scale, window)
    return slow_pool(scores[sinks : len(scores) - recent], kernel, pool)


def slow_topk(scores: Sequence[float], budget: int) -> list[int]:
    """Ranks of the highest scores, ties to the lowest, ascending."""
    return sorted(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:budget])


def mean(a: Sequence[float], x: Sequence[Sequence[float]], members: Sequence[int]) -> Vector:
    total = sum(a[i] for i in members)
    return [sum(a[i] * x[i][d] for i in members) / total for d in range(len(x[0]))]


def slow_clusters(x: Sequence[Vector], a: Sequence[float], K: int, iters: int) -> list[list[int]]:
    """Members of each cluster by weighted Lloyd iterations from evenly spaced tokens."""
    N = len(x)
    starts = [(N - 1) // 2] if K == 1 else [j * (N - 1) // (K - 1) for j in range(K)]
    centres = [list(x[i]) for i in starts]
    previous: list[int] | None = None
    for _ in range(iters):
        far = [[dot(d, d) for d in ([p - q for p, q in zip(point, c, strict=True)] for c in centres)] for point in x]
        z = [row.index(min(row)) for row in far]
        cost = [a[i] * min(far[i]) for i in range(N)]
        for k in range(K):
            if k not in z:
                donors = [i for i in range(N) if z.count(z[i]) >= 2]
                z[max(donors, key=lambda i: (cost[i], -i))] = k
        if z == previous:
            break
        previous = z
        centres = [mean(a, x, [i for i in range(N) if z[i] == k]) for k in range(K)]
    return [[i for i in range(N) if z[i] == k] for k in range(K)]
