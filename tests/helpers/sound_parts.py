"""Parts of a stranger that keep their contracts. The broken ones differ from these in one thing each."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from kvfw.core.compress.stages import Merge, Select
from kvfw.core.contracts.codec import CodedHeads, PlainHeads
from kvfw.core.contracts.metric import Evidence, MetricPart, Missing, Value
from kvfw.core.contracts.parts import LayerView
from kvfw.core.contracts.records import MetricInfo, TrialKey, TrialRecord
from kvfw.core.contracts.task import Sample, Tokenizer, Turn
from kvfw.core.ops.rounding import by_weight
from kvfw.core.ops.topk import rank
from kvfw.core.parts.part import Part, Scope
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.rope import Rope, rotate, unrotate
from kvfw.core.state.state import KVState
from kvfw.errors import PromptError


class Norm(Part):
    """``score_j = ||k_j||``, pooled over nothing; looks at keys alone."""

    scale: float = 1.0

    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(obs.state.keys.float(), dim=-1)
        return self.scale * norms


class Best(Part):
    """Keeps the highest scores."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return (rank(scores, eligible) < budget[..., None]) & eligible


class Segments(Part):
    """Cuts a head's slots into ``budget`` runs of neighbours and replaces each by its weighted means."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        rows, heads = budget.shape
        width = int(budget.max())
        out = KVState(
            keys=state.keys.new_zeros(rows, heads, width, state.keys.shape[-1]),
            values=state.values.new_zeros(rows, heads, width, state.values.shape[-1]),
            positions=state.positions.new_full((rows, heads, width), -1.0),
            mass=state.mass.new_zeros(rows, heads, width),
            bias=state.bias.new_full((rows, heads, width), -torch.inf),
        )
        for row in range(rows):
            for head in range(heads):
                self._head(state, weights, row, head, int(budget[row, head]), out)
        return out

    def _head(self, state: KVState, weights: Tensor, row: int, head: int, slots: int, out: KVState) -> None:
        real = state.valid[row, head].nonzero()[:, 0]
        for i in range(slots):
            members = real[i * len(real) // slots : (i + 1) * len(real) // slots]
            at = out.mass.shape[-1] - slots + i
            out.mass[row, head, at] = state.mass[row, head, members].sum()
            out.bias[row, head, at] = self.bias(state.bias[row, head, members])
            if len(members) == 1:
                members = members[:1]
                out.keys[row, head, at] = state.keys[row, head, members[0]]
                out.values[row, head, at] = state.values[row, head, members[0]]
                out.positions[row, head, at] = state.positions[row, head, members[0]]
                continue
            share = self.shares(weights[row, head, members])
            out.keys[row, head, at] = (share[:, None] * state.keys[row, head, members]).sum(0)
            out.values[row, head, at] = (share[:, None] * state.values[row, head, members]).sum(0)
            out.positions[row, head, at] = state.positions[row, head, members].mean()

    def bias(self, biases: Tensor) -> Tensor:
        """The mean of what the biases multiply attention by, as a bias."""
        return biases.logsumexp(0) - math.log(len(biases))

    def shares(self, weights: Tensor) -> Tensor:
        """What each member counts; all alike where no weight is above 0."""
        top = weights.max()
        floored = weights / torch.where(top > 0, top, 1.0) + 1e-3
        return floored / floored.sum()


class Unturned(Part):
    """Merging happens on keys without rotation."""

    def forward(self, state: KVState, rope: Rope | None) -> KVState:
        return state if rope is None else with_keys(state, unrotate(state.keys, state.positions, rope))

    def inverse(self, state: KVState, rope: Rope | None) -> KVState:
        return state if rope is None else with_keys(state, rotate(state.keys, state.positions, rope))


class Louder(Part):
    """Every slot counts as often as the head had tokens for each slot that it keeps."""

    @property
    def needs(self) -> Needs:
        return Needs()

    def refine(self, state: KVState, obs: Observation) -> KVState:
        return replace(state, bias=state.bias + self.gain(state, obs)[..., None])

    def gain(self, state: KVState, obs: Observation) -> Tensor:
        """Added to every bias of a head; 0 where it kept all tokens."""
        return (obs.state.valid.sum(-1) / state.valid.sum(-1).clamp(min=1)).log()


class Bytes(Part):
    """A byte for a number: how many 127ths of its slot's largest it is."""

    @property
    def needs(self) -> Needs:
        return Needs()

    def encode(self, heads: PlainHeads) -> Mapping[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, x in (("key", heads.keys.float()), ("value", heads.values.float())):
            scale = self.scale(x)
            codes = self.rounded(x / scale.float()).clamp(-127, 127)
            found |= {f"{name}_codes": codes.to(torch.int8), f"{name}_scale": scale}
        return found

    def scale(self, x: Tensor) -> Tensor:
        """What one step is, by slot."""
        return (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-4).half()

    def rounded(self, x: Tensor) -> Tensor:
        """Whole numbers near these."""
        return x.round()

    def decode(self, heads: CodedHeads) -> tuple[Tensor, Tensor]:
        held = heads.tensors
        keys, values = (held[f"{name}_codes"] * held[f"{name}_scale"].float() for name in ("key", "value"))
        return keys.to(heads.dtype), values.to(heads.dtype)


class Spread(Part):
    """Slots in proportion to a head's highest score."""

    scope: ClassVar[Scope] = "model"

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        scores = [layer.scores() for layer in layers]
        most = torch.cat([(each > -torch.inf).sum(-1) for each in scores], 1)
        weights = torch.cat([self.weights(each) for each in scores], 1).to(torch.float64)
        return list(torch.split(by_weight(weights, total, most), [layer.kv_heads for layer in layers], 1))

    def weights(self, scores: Tensor) -> Tensor:
        """How much each head gets: its highest score."""
        return scores.amax(-1).clamp(min=0)


class Keep(Select):
    """A stage form of a stranger: selection as it is."""


class Fuse(Merge):
    """A stage form of a stranger: merging as it is."""


class Sum(Part):
    """Hides a number in filler words and asks for it."""

    contexts: tuple[int, ...] = (512, 589)
    depths: tuple[float, ...] = (0.0, 37.5, 100.0)
    seeds: int = Field(2, ge=1)

    scores: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(name="right", title="Right", proportion=True, higher_is_better=True, primary=True),
    )

    def check(self) -> None:
        if not self.contexts or not self.depths:
            raise PromptError("an empty list; give at least one value")
        for depth in self.depths:
            if not 0 <= depth <= 100:
                raise PromptError(f"a depth of {depth} lies outside the text; use 0 to 100")

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        for context in self.contexts:
            for seed in range(self.seeds):
                for depth in self.depths:
                    yield self.sample(tokenizer, context, depth, seed)

    def sample(self, tokenizer: Tokenizer, context: int, depth: float, seed: int) -> Sample:
        answer = self.answer(context, depth, seed)
        hidden = tokenizer.encode(f" The number is {answer}.", add_special_tokens=False)
        question = tokenizer.encode(" What is the number?", add_special_tokens=False)
        filler = tokenizer.encode(" la", add_special_tokens=False)[-1]
        room = context - len(hidden) - len(question)
        if room < 1:
            raise PromptError(f"{context} tokens are too few; use {len(hidden) + len(question) + 1}")
        at = round(room * depth / 100)
        return Sample(
            id=f"{context}-{depth:g}-{seed}",
            group=f"{context}/{seed}",
            facets={"context": context, "depth": depth, "seed": seed},
            context_ids=(*[filler] * at, *hidden, *[filler] * (room - at)),
            turns=(Turn(tuple(question), references=(answer,)),),
            spans=(range(at, at + len(hidden)),),
        )

    def answer(self, *key: object) -> str:
        return str(random.Random(repr(key)).randrange(10**6, 10**7))

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        return {"right": float(turn.references[0] in response)}


class Words(MetricPart):
    """Words of the response."""

    info: ClassVar[MetricInfo] = MetricInfo(name="words", title="Words")

    def measure(self, evidence: Evidence) -> Value:
        count = len(evidence.response.text.split())
        return float(count) if count else Missing("an empty response has no words")


class Longest(Part):
    """A response's length against the longest of its run."""

    info: ClassVar[MetricInfo] = MetricInfo(name="longest", title="Longest")

    def derive(self, records: Sequence[TrialRecord]) -> Mapping[TrialKey, float | Missing]:
        longest = max(len(record.response) for record in records)
        return {record.key: len(record.response) / longest for record in records}


def folder(name: str) -> str:
    """What stands behind the name of a model."""
    return f"/models/{name}"


def with_keys(state: KVState, keys: Tensor) -> KVState:
    """The state with other keys."""
    return KVState(keys, state.values, state.positions, state.mass, state.bias)
