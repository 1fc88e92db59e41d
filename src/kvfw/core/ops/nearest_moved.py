"""Nearest centre of every token where there are many centres: only those that moved are looked at.

What is nearest, and why products only narrow the choice, says :mod:`kvfw.core.ops.nearest`; the results are the same.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kvfw.core.ops.blocks import LINE, Blocks
from kvfw.core.ops.products import closest, largest, margin_of


class MovedSearch:
    """Nearest centres of a fixed set of tokens; asked again whenever some of the centres moved.

    Known of every token are its nearest centre, that centre's score and one that no other centre exceeds. Scores of
    centres that stayed where they were cannot have changed, so products are taken with the others only. That decides
    for all tokens but a few whose own centre moved away; they look at all centres again.

    Source: T. Kaukoranta, P. Franti, O. Nevalainen, A fast exact GLA based on code vector activity detection, IEEE
    Transactions on Image Processing 9(8), 2000, has the idea of looking at moved centres only; a bound on all but the
    nearest is G. Hamerly's, Making k-means even faster, SDM 2010, here on scores in place of distances.

    Args:
        x: the tokens.
        clusters: number of centres.
        chunk: greatest number of scores held at once.
    """

    def __init__(self, x: Float[Tensor, "N D"], clusters: int, chunk: int) -> None:
        self._x = x
        self._chunk = chunk
        N, D = x.shape
        n = -(-N // LINE) * LINE
        self._origin = x.mean(0)
        # After each token a one, for what is added to its products.
        self._tokens = x.new_ones(n, D + 1)
        self._tokens[N:, :D] = 0
        torch.sub(x, self._origin, out=self._tokens[:N, :D])
        # What fills up the last line is no token: nothing compares with NaN.
        self._length = x.new_full((n,), torch.nan)
        torch.linalg.vector_norm(self._tokens[:N, :D], dim=1, out=self._length[:N])
        self._table = x.new_empty(clusters, D + 1)
        self._last = torch.full_like(self._table[:, :D], torch.nan)
        self._longest = x.new_zeros(())
        self._nearest = torch.zeros(n, dtype=torch.int64, device=x.device)
        self._best, self._rest = x.new_full((2, n), -torch.inf)
        # The same of the centres that moved.
        self._where = torch.zeros_like(self._nearest)
        self._top, self._second = x.new_empty(2, n)
        some = min(n, max(LINE, chunk // clusters // LINE * LINE))
        self._memory = x.new_empty(clusters * some)
        parts = (torch.split(each, some) for each in (self._tokens, self._top, self._where, self._second))
        self._tiles = list(zip(*parts, strict=True))

    def nearest(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        z = centres - self._origin
        moved = (z != self._last).any(1)
        which = moved.nonzero().squeeze(1)
        if len(which):
            self._last = z
            square = (z * z).sum(1)
            torch.mul(z, 2, out=self._table[:, :-1])
            torch.neg(square, out=self._table[:, -1])
            self._longest = torch.maximum(self._longest, square.amax().sqrt_())
            self._look(which)
            margin = margin_of(self._length + self._longest, z.shape[1])
            doubtful = self._take_over(moved, margin)
            # A few tokens as a rule, but all of them where keys are equal.
            for some in torch.split(doubtful, max(1, self._chunk // len(z))) if len(doubtful) else ():
                self._decide(some, centres, margin.take(some))
        return self._nearest[: len(self._x)].clone()

    def _look(self, which: Int64[Tensor, " k"]) -> None:
        """Finds the two largest scores of every token among some centres."""
        table = self._table.index_select(0, which)
        for tokens, top, where, second in self._tiles:
            score = self._memory[: len(which) * len(tokens)].view(1, len(which), len(tokens))
            torch.mm(table, tokens.T, out=score[0])
            best, at = largest(score)
            top.copy_(best[0, 0])
            torch.take(which, at[0, 0], out=where)
            torch.amax(score.scatter_(1, at, -torch.inf)[0], 0, out=second)

    def _take_over(self, moved: Bool[Tensor, " K"], margin: Float[Tensor, " n"]) -> Int64[Tensor, " _"]:
        """What was found becomes what is known; returns the tokens whose nearest centre that leaves open."""
        # A centre that moved away has no score any more.
        self._best.masked_fill_(moved.take(self._nearest), -torch.inf)
        stays = self._top <= self._best
        # Whichever of the two loses is one of the others now.
        threat = torch.maximum(torch.minimum(self._top, self._best), self._second)
        torch.maximum(self._rest, threat, out=self._rest)
        torch.maximum(self._top, self._best, out=self._best)
        self._nearest = torch.where(stays, self._nearest, self._where)
        # A centre that was nearest of all that stay is that still, however close.
        threat = torch.where(stays, threat, self._rest)
        doubtful: Tensor = (threat >= self._best - margin).nonzero().squeeze(1)
        return doubtful

    def _decide(self, tokens: Int64[Tensor, " n"], centres: Float[Tensor, "K D"], margin: Float[Tensor, " n"]) -> None:
        """All that is known of some tokens, from all centres."""
        score = self._tokens.index_select(0, tokens) @ self._table.T
        row, at = (score >= (score.amax(1) - margin)[:, None]).nonzero(as_tuple=True)
        if len(row) > len(tokens):
            at = closest(self._x.index_select(0, tokens), centres, row, at, self._chunk)
        at = at[:, None]
        self._nearest.index_copy_(0, tokens, at[:, 0])
        self._best.index_copy_(0, tokens, score.gather(1, at)[:, 0])
        self._rest.index_copy_(0, tokens, score.scatter_(1, at, -torch.inf).amax(1))


class MovedSearches:
    """One :class:`MovedSearch` for every block."""

    def __init__(self, x: Float[Tensor, "N D"], blocks: Blocks, searches: Sequence[MovedSearch]) -> None:
        self.x = x
        self.blocks = blocks
        self._searches = searches

    @classmethod
    def of(cls, x: Float[Tensor, "N D"], blocks: Blocks, chunk: int) -> "MovedSearches":
        """Searches that have not seen any centres."""
        tokens = torch.split(x, [tokens for tokens, _ in blocks.parts])
        searches = [MovedSearch(own, part[1], chunk) for own, part in zip(tokens, blocks.parts, strict=True)]
        return cls(x, blocks, searches)

    def nearest(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        parts = torch.split(centres, [clusters for _, clusters in self.blocks.parts])
        found = torch.cat([search.nearest(own) for search, own in zip(self._searches, parts, strict=True)])
        return found.add_(self.blocks.first.index_select(0, self.blocks.of_token))

    def only(self, blocks: Int64[Tensor, " some"], tokens: Int64[Tensor, " n"]) -> "MovedSearches":
        """Of these blocks alone; they remember what they know."""
        searches = [self._searches[b] for b in blocks.tolist()]
        return MovedSearches(self.x.index_select(0, tokens), self.blocks.only(blocks), searches)
