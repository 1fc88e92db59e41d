"""Nearest centre of every token where there are many centres: only those that moved are looked at.

What is nearest, and why products only narrow the choice, says :mod:`kvfw.core.ops.kmeans.nearest`; the results are
the same.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kvfw.core.ops.kmeans.blocks import LINE, Blocks
from kvfw.core.ops.kmeans.picking import pick, two_largest
from kvfw.core.ops.kmeans.products import margin_of, table_of


class MovedSearch:
    """Nearest centres of a fixed set of tokens, each among its own block's; asked again whenever some centres moved.

    Source: T. Kaukoranta, P. Franti, O. Nevalainen, A fast exact GLA based on code vector activity detection, IEEE
    Transactions on Image Processing 9(8), 2000, has the idea of looking at moved centres only; a bound on all but the
    nearest is G. Hamerly's, Making k-means even faster, SDM 2010, here on scores in place of distances.
    """

    def __init__(self, x: Float[Tensor, "N D"], blocks: Blocks, searches: Sequence["BlockSearch"]) -> None:
        self.x = x
        self.blocks = blocks
        self._searches = searches

    @classmethod
    def of(cls, x: Float[Tensor, "N D"], blocks: Blocks, chunk: int) -> "MovedSearch":
        """A search that has not seen any centres; see :func:`kvfw.core.ops.kmeans.nearest.search_of`."""
        parts = zip(torch.split(x, [tokens for tokens, _ in blocks.parts]), blocks.parts, strict=True)
        # They take turns, so one room for scores is enough.
        room = x.new_empty(max(clusters * _at_once(tokens, clusters, chunk) for tokens, clusters in blocks.parts))
        return cls(x, blocks, [BlockSearch(own, clusters, chunk, room) for own, (_, clusters) in parts])

    def nearest(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        parts = torch.split(centres, [clusters for _, clusters in self.blocks.parts])
        found = torch.cat([search.nearest(own) for search, own in zip(self._searches, parts, strict=True)])
        return found.add_(self.blocks.first.index_select(0, self.blocks.of_token))

    def only(self, blocks: Int64[Tensor, " some"], tokens: Int64[Tensor, " n"]) -> "MovedSearch":
        """Of these blocks alone; they remember what they know."""
        searches = [self._searches[b] for b in blocks.tolist()]
        return MovedSearch(self.x.index_select(0, tokens), self.blocks.only(blocks), searches)


class BlockSearch:
    """The same for one block.

    Known of every token are its nearest centre, that centre's score and one that no other centre exceeds (``rest``).
    Scores of centres that stayed where they were cannot have changed, so products are taken with the others only. That
    decides for all tokens but a few, whose own centre moved away or which another comes as near to as rounding can
    tell; they look at all centres again.

    Args:
        x: the tokens.
        clusters: number of centres.
        chunk: greatest number of scores looked at in one go, but at least those of 16 tokens.
        room: memory for them.
    """

    def __init__(self, x: Float[Tensor, "N D"], clusters: int, chunk: int, room: Float[Tensor, " scores"]) -> None:
        self._x = x
        self._chunk = chunk
        self._room = room
        N, D = x.shape
        n = -(-N // LINE) * LINE
        self._origin = x.mean(0)
        y = x - self._origin
        # Tokens side by side: their products take two thirds of the time. Below each a one, for what is added to them.
        self._columns = x.new_ones(D + 1, n)
        self._columns[:D, :N] = y.T
        self._columns[:D, N:] = 0
        # What fills up the last line is no token: nothing compares with NaN.
        self._length = x.new_full((n,), torch.nan)
        torch.linalg.vector_norm(y, dim=1, out=self._length[:N])
        self._table = x.new_empty(clusters, D + 1)
        # Centres are compared as they are: two of them can be the same as seen from the mean token.
        self._last = x.new_full((clusters, D), torch.nan)
        self._longest = x.new_zeros(())
        self._nearest = torch.zeros(n, dtype=torch.int64, device=x.device)
        self._best, self._rest = x.new_full((2, n), -torch.inf)
        # The same of the centres that moved.
        self._where = torch.zeros_like(self._nearest)
        self._top, self._second = x.new_empty(2, n)
        self._zero = torch.zeros(1, dtype=torch.int64, device=x.device)
        self._some = _at_once(N, clusters, chunk)
        known = (self._columns, self._top, self._where, self._second)
        parts = (torch.split(each, self._some, dim=-1) for each in known)
        self._tiles = list(zip(*parts, strict=True))

    def nearest(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        moved = (centres != self._last).any(1)
        which = moved.nonzero().squeeze(1)
        if len(which):
            self._last = centres.clone()
            self._table, longest = table_of(centres - self._origin)
            # Of all centres that any remembered score is of.
            self._longest = torch.maximum(self._longest, longest)
            self._look(which)
            margin = margin_of(self._length + self._longest, centres.shape[1])
            doubtful = self._take_over(moved, margin)
            # A few tokens as a rule, but all of them where keys are equal.
            for some in torch.split(doubtful, self._some) if len(doubtful) else ():
                self._decide(some, centres, margin.index_select(0, some))
        return self._nearest[: len(self._x)].clone()

    def _look(self, which: Int64[Tensor, " k"]) -> None:
        """Finds the two largest scores of every token among some centres."""
        table = self._table.index_select(0, which)
        for columns, top, where, second in self._tiles:
            score = self._room[: len(which) * len(top)].view(1, len(which), len(top))
            torch.mm(table, columns, out=score[0])
            best, at, others = two_largest(score)
            top.copy_(best[0])
            torch.index_select(which, 0, at[0], out=where)
            second.copy_(others[0])

    def _take_over(self, moved: Bool[Tensor, " K"], margin: Float[Tensor, " n"]) -> Int64[Tensor, " _"]:
        """What was found becomes what is known; returns the tokens whose nearest centre that leaves open."""
        # A centre that moved away has no score any more.
        self._best.masked_fill_(moved.index_select(0, self._nearest), -torch.inf)
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
        score = self._room[: len(tokens) * len(centres)].view(1, len(centres), -1)
        torch.mm(self._table, self._columns.index_select(1, tokens), out=score[0])
        own = self._x.index_select(0, tokens)
        best, at, second = pick(score, margin[None], own, self._zero, centres, self._zero, self._chunk)
        self._nearest.index_copy_(0, tokens, at[0])
        self._best.index_copy_(0, tokens, best[0])
        self._rest.index_copy_(0, tokens, second[0])


def _at_once(tokens: int, clusters: int, chunk: int) -> int:
    """Tokens whose scores are looked at in one go: whole lines."""
    return min(-(-tokens // LINE) * LINE, max(LINE, chunk // clusters // LINE * LINE))
