"""A plugin that brings one part of every kind, written with nothing but the public names of kvfw."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from kvfw import (
    Codec,
    CodedHeads,
    DerivedMetric,
    Evidence,
    Kind,
    KVState,
    LayerView,
    Measured,
    Merger,
    Method,
    Metric,
    MetricInfo,
    MetricPart,
    Missing,
    Needs,
    Observation,
    Outcome,
    Part,
    PartSpec,
    PlainHeads,
    Rope,
    Sample,
    Scorer,
    Selector,
    Space,
    Stage,
    StageForm,
    Task,
    Tokenizer,
    TrialKey,
    TrialRecord,
    Turn,
    Value,
    check_grid,
    framed,
    hookimpl,
    merge_clusters,
    stable_random,
    vector_of,
)

#: Environment variable with the folder of the plugin's model.
FOLDER = "STRANGER_MODEL"


@hookimpl
def kvfw_parts() -> list[PartSpec]:
    """One part of every kind."""
    classes: list[tuple[Kind, str, type[Part]]] = [
        (Kind.SCORER, "x_scorer", XScorer),
        (Kind.SELECTOR, "x_selector", XSelector),
        (Kind.MERGER, "x_merger", XMerger),
        (Kind.SPACE, "x_space", XSpace),
        (Kind.ALLOCATOR, "x_allocator", XAllocator),
        (Kind.REFINER, "x_refiner", XRefiner),
        (Kind.CODEC, "x_codec", XCodec),
        (Kind.STAGE, "x_stage", XStage),
        (Kind.METHOD, "x_method", XMethod),
        (Kind.TASK, "x_task", XTask),
        (Kind.METRIC, "x_metric", XMetric),
        (Kind.METRIC, "x_derived", XDerived),
    ]
    parts = [PartSpec(kind, name, f"{__name__}:{cls.__name__}", "for a test") for kind, name, cls in classes]
    return [*parts, PartSpec(Kind.MODEL, "x-model.1", f"{__name__}:x_folder", "for a test", facts={"licence": "none"})]


class XScorer(Part):
    """Scores by position modulo a period."""

    period: int = 3

    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation) -> Tensor:
        return obs.state.positions.clamp(min=0) % self.period


class XSelector(Part):
    """Keeps the first eligible tokens, whatever their scores."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return eligible & (eligible.cumsum(-1) <= budget[..., None])


class XMerger(Part):
    """Merges neighbours two by two from the front."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        return merge_clusters(
            state, weights, budget, lambda tokens, count: torch.arange(len(tokens.weights)).clamp(max=count - 1)
        )


class XSpace(Part):
    """Keys twice as large."""

    def forward(self, state: KVState, rope: Rope | None) -> KVState:
        return KVState(state.keys * 2, state.values, state.positions, state.mass, state.bias)

    def inverse(self, state: KVState, rope: Rope | None) -> KVState:
        return KVState(state.keys / 2, state.values, state.positions, state.mass, state.bias)


class XAllocator(Part):
    """All that fits goes to the first layers."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        left, found = total.clone(), []
        for layer in layers:
            each = (left // layer.kv_heads).minimum(layer.middle)
            found.append(each[:, None].expand(-1, layer.kv_heads).clone())
            left = left - each * layer.kv_heads
        found[-1][:, 0] += left
        return found


class XRefiner(Part):
    """Values are halved."""

    needs: ClassVar[Needs] = Needs()

    def refine(self, state: KVState, obs: Observation) -> KVState:
        return replace(state, values=state.values / 2)


class XCodec(Part):
    """Half the precision."""

    needs: ClassVar[Needs] = Needs()

    def encode(self, heads: PlainHeads) -> Mapping[str, Tensor]:
        return {"keys": heads.keys.half(), "values": heads.values.half()}

    def decode(self, heads: CodedHeads) -> tuple[Tensor, Tensor]:
        return heads.tensors["keys"].to(heads.dtype), heads.tensors["values"].to(heads.dtype)


class XStage(StageForm):
    """Keeps the first eligible tokens without asking any part."""

    @property
    def moves_positions(self) -> bool:
        return False

    @property
    def needs(self) -> Needs:
        return Needs()

    def run(self, obs: Observation, score_of: Callable[[Scorer], Tensor], budget: Tensor, eligible: Tensor) -> Outcome:
        return Outcome(kept=eligible & (eligible.cumsum(-1) <= budget[..., None]))

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return state


class XMethod(Method):
    """All of the above in one recipe."""

    period: int = 4
    recipe: ClassVar[str] = "merge(merger=x_merger,space=x_space,weight=x_scorer(period=$period))"


class XTask(Part):
    """A context of one word, and a question whose answer is any text."""

    contexts: tuple[int, ...] = (1024,)
    depths: tuple[float, ...] = (50.0,)
    word: str = "sea"
    scores: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(name="x_score", title="X score", higher_is_better=True, primary=True),
    )

    def check(self) -> None:
        check_grid(self.contexts, self.depths)

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        head, tail = framed(tokenizer, "Text:", f" {stable_random(0).random()}?")
        token = tokenizer.encode(f" {self.word}", add_special_tokens=False)[0]
        for context, depth in product(self.contexts, self.depths):
            middle = context - len(head) - len(tail)
            at = len(head) + int(depth / 100 * (middle - 1))
            ids = (*head, *(middle * (token,)))
            facets = {"context": context, "depth": depth}
            yield Sample(f"{context}-{depth:g}", str(context), facets, ids, (Turn(tail),), (range(at, at + 1),))

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        return {"x_score": float(bool(response))}


class XMetric(MetricPart):
    """Tokens in the response, with a vector for the derived metric."""

    info: ClassVar[MetricInfo] = MetricInfo(name="x_metric", title="X", unit="tokens", digits=1)

    def measure(self, evidence: Evidence) -> Value:
        count = float(len(evidence.response.tokens))
        return Measured(count, (count, 1.0)) if count else Missing("an empty response")


class XDerived(MetricPart):
    """What the metric stored, less its mean over the run."""

    info: ClassVar[MetricInfo] = MetricInfo(name="x_derived", title="X centred")

    def derive(self, records: Sequence[TrialRecord]) -> Mapping[TrialKey, float | Missing]:
        found = {record.key: vector_of(record.vectors["x_metric"])[0] for record in records}
        mean = sum(found.values()) / max(len(found), 1)
        return {key: value - mean for key, value in found.items()}


def x_folder(name: str) -> Path:
    """Where the model lives."""
    return Path(os.environ[FOLDER])


#: The contracts, for type checkers.
_SCORER: type[Scorer] = XScorer
_SELECTOR: type[Selector] = XSelector
_MERGER: type[Merger] = XMerger
_SPACE: type[Space] = XSpace
_CODEC: type[Codec] = XCodec
_STAGE: type[Stage] = XStage
_TASK: type[Task] = XTask
_METRIC: type[Metric] = XMetric
_DERIVED: type[DerivedMetric] = XDerived
