"""Turns a clustering rule into merged slots: the code mergers share."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from kvfw.core.ops.cluster_means import cluster_sums, weighted_means
from kvfw.core.state.state import KVState


@dataclass(frozen=True)
class HeadTokens:
    """The slots to merge of one KV head of one row, or of G heads with equally many; by position, no empty slots.

    Keys are in the space of the merge; ``weights`` are not negative; the rest is as in :class:`kvfw.KVState`.
    """

    keys: Float32[Tensor, "*G n Dk"]
    values: Float32[Tensor, "*G n Dv"]
    positions: Float32[Tensor, "*G n"]
    mass: Float32[Tensor, "*G n"]
    weights: Float32[Tensor, "*G n"]
    bias: Float32[Tensor, "*G n"]

    def head(self, index: int) -> "HeadTokens":
        """The slots of one head out of G."""
        parts = (self.keys, self.values, self.positions, self.mass, self.weights, self.bias)
        return HeadTokens(*(part[index] for part in parts))


#: Returns each token's cluster, 0 to ``count - 1``, for one head and a ``count``; no cluster may be empty.
ClustersOf = Callable[[HeadTokens, int], Int64[Tensor, " n"]]
#: The same for G heads at once, which must not influence each other: ``[G, n]``.
ClustersOfHeads = Callable[[HeadTokens, int], Int64[Tensor, "G n"]]


def merge_clusters(
    state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"], clusters_of: ClustersOf
) -> KVState:
    """Merges every cluster into one slot, its weighted mean, in the layout a merger returns (:class:`kvfw.Merger`).

    Keys, values and positions are ``sum(a x) / sum(a)``, or the plain mean if all weights ``a`` are 0; masses add up;
    ``exp(bias)`` is averaged as values are. A cluster of one token is that token bit for bit. Heads do not affect each
    other; ``clusters_of`` is not called for a head with a budget of 0.

    Args:
        state, weights, budget: as a merger gets them.
        clusters_of: the rule, for one head at a time.

    Raises:
        ValueError: an id out of range, a cluster without tokens, or not one id per token; a weight that is negative or
            not finite.
    """

    def of_heads(tokens: HeadTokens, count: int) -> Int64[Tensor, "G n"]:
        return torch.stack([clusters_of(tokens.head(g), count) for g in range(len(tokens.keys))])

    return merge_heads(state, weights, budget, of_heads)


def merge_heads(
    state: KVState,
    weights: Float[Tensor, "B Hkv N"],
    budget: Int64[Tensor, "B Hkv"],
    clusters_of: ClustersOfHeads,
    *,
    floor: float = 0.0,
) -> KVState:
    """:func:`merge_clusters` with a rule for several heads at once, which have equally many tokens and slots.

    ``floor``: every weight is raised by this share of its head's mean weight, so that no token has weight 0.
    """
    rows, heads, width = *budget.shape, int(budget.max())
    # Slots are filled from the right; the others stay empty.
    merged = KVState(
        keys=state.keys.new_zeros(rows, heads, width, state.keys.shape[-1]),
        values=state.values.new_zeros(rows, heads, width, state.values.shape[-1]),
        positions=state.positions.new_full((rows, heads, width), -1.0),
        mass=state.mass.new_zeros(rows, heads, width),
        bias=state.bias.new_full((rows, heads, width), -torch.inf),
    )
    alike: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    sizes = state.valid.sum(-1).tolist()
    for row, counts in enumerate(budget.tolist()):
        for head, count in enumerate(counts):
            if count:
                alike[sizes[row][head], count].append((row, head))
    for (_, count), members in alike.items():
        tokens = _tokens(state, weights, members, floor)
        assignment = clusters_of(tokens, count)
        _check(tokens, assignment, count)
        _fill(merged, members, tokens, assignment, count)
    return merged


def _check(tokens: HeadTokens, assignment: Int64[Tensor, "_ _"], count: int) -> None:
    """Raises the ValueErrors of :func:`merge_clusters`; without it a wrong id or weight would give garbage."""
    if assignment.shape != tokens.weights.shape:
        given, asked = assignment.shape[-1], tokens.weights.shape[-1]
        raise ValueError(f"{given} clusters were named for {asked} tokens: every token must be in exactly one")
    least, most = (float(end) for end in tokens.weights.detach().aminmax())
    if not (least >= 0 and most < torch.inf):
        raise ValueError(f"weights span {least:g} to {most:g}: they must be finite and not negative")
    low, high = (int(end) for end in assignment.aminmax())
    if low < 0 or high >= count:
        raise ValueError(f"a token was put into cluster {low if low < 0 else high}: they are numbered 0 to {count - 1}")
    found = torch.zeros(len(assignment), count, dtype=torch.bool, device=assignment.device)
    if not bool(found.scatter_(1, assignment, True).all()):
        raise ValueError(f"one of the clusters 0 to {count - 1} has no token: every one must have at least one")


def _tokens(
    state: KVState, weights: Float[Tensor, "B Hkv N"], members: list[tuple[int, int]], floor: float
) -> HeadTokens:
    row, head = torch.tensor(members, device=weights.device).T
    slots = state.valid[row, head].nonzero()[:, 1].view(len(members), -1)
    index = (slots + ((row * weights.shape[1] + head) * state.width)[:, None]).flatten()

    def gathered(part: Tensor) -> Tensor:
        flat = part.flatten(0, 2)
        taken = flat if len(index) == len(flat) else flat.index_select(0, index)
        return taken.view(*slots.shape, *part.shape[3:]).float()

    # One head at a time: a mean over several rows may add in another order than the mean of one.
    raised = torch.stack([a + floor * a.mean() for a in gathered(weights)])
    keys, values, positions, mass, bias = map(gathered, state.parts)
    return HeadTokens(keys, values, positions, mass, raised, bias)


def _fill(
    merged: KVState, members: list[tuple[int, int]], tokens: HeadTokens, assignment: Int64[Tensor, "G n"], count: int
) -> None:
    """Writes the means of the members' clusters, ordered by position, to the right end of their heads."""
    heads = len(members)
    ids = torch.arange(heads, device=assignment.device)[:, None]
    which = (assignment + ids * count).flatten()
    total = heads * count
    a, at = tokens.weights.flatten(), tokens.positions.flatten()
    # Positions are averaged as offsets from the cluster's first token, so float32 is exact enough at any length.
    first = at.new_full((total,), torch.inf).scatter_reduce(0, which, at, "amin")
    means = first + weighted_means((at - first[which])[:, None], a, which, total)[:, 0]
    order = (means.view(heads, count).argsort(dim=-1, stable=True) + ids * count).flatten()
    row, head = torch.tensor(members, device=which.device).T
    slots = slice(merged.keys.shape[2] - count, None)
    for target, found in (
        (merged.keys, weighted_means(tokens.keys.flatten(0, 1), a, which, total)),
        (merged.values, weighted_means(tokens.values.flatten(0, 1), a, which, total)),
        (merged.positions, means),
        (merged.mass, cluster_sums(tokens.mass.flatten()[:, None], which, total)[:, 0]),
        (merged.bias, _mean_bias(tokens, a, which, total)),
    ):
        target[row, head, slots] = found[order].view(heads, count, *found.shape[1:]).to(target.dtype)


def _mean_bias(
    tokens: HeadTokens, a: Float32[Tensor, " Gn"], which: Int64[Tensor, " Gn"], total: int
) -> Float32[Tensor, " K"]:
    """Log of each cluster's weighted mean of ``exp(bias)``; exact where all biases of a cluster are equal."""
    bias = tokens.bias.flatten()
    top = bias.new_full((total,), -torch.inf).scatter_reduce(0, which, bias, "amax")
    if not bool(bias.any()):
        return top
    return top + weighted_means((bias - top[which]).exp()[:, None], a, which, total)[:, 0].log()
