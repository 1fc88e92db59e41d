"""What one KV head's queries see of its full cache and of what was kept of it, for refitting the latter."""

from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from kvfw.core.ops.columns import ACCELERATOR_BLOCK_ELEMENTS, BLOCK_ELEMENTS
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import KVState


@dataclass(frozen=True)
class MatchedHead:
    """The valid slots of one KV head, in float32."""

    keys: Float32[Tensor, "n Dk"]
    values: Float32[Tensor, "n Dv"]
    positions: Float32[Tensor, " n"]
    bias: Float32[Tensor, " n"]

    @classmethod
    def of(cls, state: KVState, row: int, head: int) -> "MatchedHead":
        """Those of a state."""
        valid = state.valid[row, head]
        parts = (state.keys, state.values, state.positions, state.bias)
        return cls(*(part[row, head][valid].float() for part in parts))


@dataclass(frozen=True)
class HeadQueries:
    """Reference queries of all query heads of a KV head, padding left out.

    Args:
        scaled: times the model's factor.
        positions: a query sees the slots up to its own position.
        sinks: logit of each query's own attention sink; minus infinity without.
        softcap: see :class:`kvfw.core.state.observation.Observation`.
    """

    scaled: Float32[Tensor, "r Dk"]
    positions: Float32[Tensor, " r"]
    sinks: Float32[Tensor, " r"]
    softcap: float | None

    @classmethod
    def of(
        cls, queries: Tensor, positions: Float32[Tensor, "B n"], obs: Observation, row: int, head: int
    ) -> "HeadQueries":
        """Those of a KV head, of queries ``[B, H, n, Dk]``; queries before every slot are left out too."""
        group = queries.shape[1] // obs.state.keys.shape[1]
        own = slice(head * group, (head + 1) * group)
        there = positions[row] >= obs.state.positions[row, head][obs.state.valid[row, head]].amin()
        asked = queries[row, own, there & (positions[row] >= 0)].float() * obs.scale
        count = asked.shape[1]
        at = positions[row][there & (positions[row] >= 0)]
        sinks = torch.full_like(at[:1], -torch.inf).expand(group) if obs.sink_logits is None else obs.sink_logits[own]
        return cls(asked.flatten(0, 1), at.repeat(group), sinks.float().repeat_interleave(count), obs.softcap)

    def rows(self, some: slice) -> "HeadQueries":
        """Some of them."""
        return HeadQueries(self.scaled[some], self.positions[some], self.sinks[some], self.softcap)

    def logits(self, slots: MatchedHead) -> Float32[Tensor, "r n"]:
        """Attention logits, biases included; minus infinity for slots that a query does not see."""
        logits = self.scaled @ slots.keys.T
        if self.softcap is not None:
            logits = logits.div_(self.softcap).tanh_().mul_(self.softcap)
        logits += slots.bias
        if bool(self.positions.amin() < slots.positions.amax()):
            logits.masked_fill_(slots.positions > self.positions[:, None], -torch.inf)
        return logits


@dataclass(frozen=True)
class Reached:
    """What queries see, in units of the full cache's softmax denominator (sink included).

    Args:
        kept: ``exp(logit)`` of every kept slot over that denominator.
        mass: share of the full cache's slots: 1, or less by the sink's share.
        sink: share of the query's own attention sink.
        output: exact attention output over the full cache.
    """

    kept: Float32[Tensor, "r k"]
    mass: Float32[Tensor, " r"]
    sink: Float32[Tensor, " r"]
    output: Float32[Tensor, "r Dv"]


def reached(asked: HeadQueries, full: MatchedHead, kept: MatchedHead) -> Reached:
    """Exact attention over the full cache, and the kept slots' logits in its units; O(block) memory for the former."""
    count, width = len(asked.scaled), len(full.keys)
    limit = BLOCK_ELEMENTS if full.keys.device.type == "cpu" else ACCELERATOR_BLOCK_ELEMENTS
    step = max(1, limit // width)
    outputs, wholes = [], []
    for start in range(0, count, step):
        some = asked.rows(slice(start, start + step))
        logits = some.logits(full)
        whole = torch.logaddexp(logits.logsumexp(-1), some.sinks)
        outputs.append(logits.sub_(whole[:, None]).exp_() @ full.values)
        wholes.append(whole)
    whole = torch.cat(wholes)
    sink = (asked.sinks - whole).exp()
    return Reached((asked.logits(kept) - whole[:, None]).exp_(), 1 - sink, sink, torch.cat(outputs))
