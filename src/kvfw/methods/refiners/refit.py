"""Attention Matching's refit of biases and values (Zweiger et al. 2026, arXiv 2602.16284)."""

import math
from dataclasses import replace
from typing import Annotated, Final, Literal

import torch
from jaxtyping import Float32
from pydantic import Field, model_validator
from torch import Tensor

from kvfw.core.ops.least_squares import damped, precise, solved, solved_within
from kvfw.core.ops.matching import HeadQueries, MatchedHead, Reached, reached
from kvfw.core.parts.files import FileOption
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import PROMPT, Needs, Observation, References
from kvfw.core.state.state import KVState

#: A refit multiplies a slot's attention by at least ``1 / MOST`` and at most ``MOST``.
MOST: Final = math.e**3


class Refit(Part):
    """New biases and values for what was kept, so that it attends as the full cache does, by least squares.

    For a KV head and the reference queries i of its group, with ``a_ij`` the full cache's attention and ``a_ik`` a kept
    slot's ``exp(logit)`` over the same denominator:

    1. ``bias``: ``sum_k a_ik B_k`` is fitted to the attention on the whole middle, ``e^-3 <= B_k <= e^3``; ``log B_k``
       is added to the slot's bias;
    2. ``values``: with ``X`` the attention over what is kept under these biases, ``X u`` is fitted to
       ``sum_j a_ij v_j``.

    Protected slots take part as they are, unless ``over=all``. ``ridge ||X||_2^2`` pulls towards the biases and values
    there were. A query sees the slots up to its own position: a probe's see all, the prompt's do not, so that few of
    them fit the slots near its end; with ``queries=prompt`` set a ridge (0.1 to 1).

    Paper: Zweiger, Fu, Guo, Kim 2026, Attention Matching, arXiv 2602.16284: its steps 2 and 3 on any selection or
    hybrid.

    Deviations: the bounded problem of step 1 is solved to its optimum, not by two gradient steps. The ridge pulls
    towards what was kept, not towards 0, so that with fewer queries than slots those no query tells apart stay as
    they are; it is 0.01 by default, not 0, because a fit with about as many queries as slots is unstable. Masses
    are relative to the full cache's denominator (with the model's own attention sink, if it has one), so that every
    query counts alike.
    """

    bias: bool = Field(True, description="refit the biases")
    values: bool = Field(True, description="refit the values")
    ridge: float = Field(0.01, ge=0, description="pull towards the biases and values there were, relative to ||X||_2^2")
    queries: Literal["probe", "prompt"] = Field("probe", description="where the reference queries come from")
    count: int = Field(1024, ge=1, description="most reference queries per query head")
    probe: Annotated[str, FileOption(("repeat",))] = Field(
        "repeat", description="what the model reads: repeat the prompt, or a text file's path"
    )
    over: Literal["middle", "all"] = Field("middle", description="refit the middle, or sinks and recent tokens too")

    @model_validator(mode="after")
    def _something(self) -> "Refit":
        if not (self.bias or self.values):
            raise ValueError("nothing is left to refit; set bias or values to true")
        return self

    @property
    def _references(self) -> References:
        return References(self.count, self.probe if self.queries == "probe" else PROMPT)

    @property
    def needs(self) -> Needs:
        """Reference queries."""
        return Needs(references=frozenset({self._references}))

    def refine(self, state: KVState, obs: Observation) -> KVState:
        """The state refitted head by head; heads that kept every slot stay as they are."""
        queries, positions = obs.reference(self._references)
        values, bias = state.values.clone(), state.bias.clone()
        for row, head in (state.valid.sum(-1) < obs.state.valid.sum(-1)).nonzero().tolist():
            asked = HeadQueries.of(queries, positions, obs, row, head)
            fitted = _open_slots(state, obs, row, head, self.over == "all")
            if not len(asked.scaled) or fitted.start >= fitted.stop:
                continue
            kept, valid = MatchedHead.of(state, row, head), state.valid[row, head]
            seen = reached(asked, MatchedHead.of(obs.state, row, head), kept)
            factors = self._factors(seen, fitted) if self.bias else torch.ones_like(kept.bias)
            new = self._values(seen, fitted, factors, kept.values) if self.values else kept.values
            bias[row, head, valid] = kept.bias + factors.log()
            values[row, head, valid] = new.to(values.dtype)
        return replace(state, values=values, bias=bias)

    def _factors(self, seen: Reached, fitted: slice) -> Float32[Tensor, " k"]:
        """``B``: kept slots together have the mass that the full cache has; 1 for slots not fitted."""
        columns = precise(seen.kept[:, fitted], self.ridge)
        missing = precise(seen.mass - seen.kept.sum(-1), self.ridge)
        gram = damped(columns.T @ columns, self.ridge)
        factors = torch.ones_like(seen.kept[0])
        right = columns.T @ missing + gram.sum(-1)
        factors[fitted] = solved_within(gram, right, 1 / MOST, MOST).to(factors)
        return factors

    def _values(
        self, seen: Reached, fitted: slice, factors: Float32[Tensor, " k"], values: Float32[Tensor, "k Dv"]
    ) -> Float32[Tensor, "k Dv"]:
        """``u``: attention over the kept slots has the full cache's output."""
        weights = seen.kept * factors
        weights = weights / (weights.sum(-1) + seen.sink)[:, None]
        missing = seen.output - weights @ values
        x, y = precise(weights[:, fitted], self.ridge), precise(missing, self.ridge)
        new = values.clone()
        new[fitted] += solved(damped(x.T @ x, self.ridge), x.T @ y).to(new)
        return new


def _open_slots(state: KVState, obs: Observation, row: int, head: int, everything: bool) -> slice:
    """Which valid slots of a head are refitted: all but as many first and last ones as are protected."""
    count = int(state.valid[row, head].sum())
    if everything:
        return slice(0, count)
    middle = obs.middle[row, head][obs.state.valid[row, head]].nonzero()[:, 0]
    last = len(obs.state.valid[row, head].nonzero()) - 1 - int(middle[-1])
    return slice(int(middle[0]), count - last)
