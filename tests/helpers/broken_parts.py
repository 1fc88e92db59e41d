"""One part for every property of the conformance suite, broken in just the way that the property forbids."""

from __future__ import annotations

from dataclasses import dataclass

from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry, register
from kvfw.methods import kvfw_parts

#: Which file holds the parts of a kind.
FILES = {
    Kind.SCORER: "broken_scorers",
    Kind.SELECTOR: "broken_pieces",
    Kind.MERGER: "broken_pieces",
    Kind.SPACE: "broken_pieces",
    Kind.ALLOCATOR: "broken_allocators",
    Kind.REFINER: "broken_refiners",
    Kind.CODEC: "broken_codecs",
    Kind.STAGE: "broken_stages",
    Kind.TASK: "broken_tasks",
    Kind.METRIC: "broken_metrics",
}


@dataclass(frozen=True)
class Broken:
    """A part, the one property it is about, and a piece of what the suite must say."""

    property: str
    spec: PartSpec
    says: str


def _broken(prop: str, kind: Kind, name: str, says: str, target: str | None = None, **facts: str) -> Broken:
    place = target or f"helpers.{FILES[kind]}:{name}"
    own = name if kind is Kind.MODEL else name.lower()
    return Broken(prop, PartSpec(kind, own, place, "for a test", facts=facts, provider="stranger"), says)


BROKEN = (
    _broken("loads", Kind.SCORER, "Absent", "cannot be imported", "helpers.nowhere:Absent"),
    _broken("contract", Kind.SCORER, "NoScore", "`score`"),
    _broken("frozen", Kind.SCORER, "Thawed", "scale could be set"),
    _broken("extra-options", Kind.SCORER, "Lenient", "is accepted"),
    _broken("round-trip", Kind.SCORER, "Unreadable", "Pool.MEAN"),
    _broken("docs", Kind.SCORER, "Silent", "docstring"),
    _broken("score-shape", Kind.SCORER, "Flat", "(3, 45)"),
    _broken("score-numbers", Kind.SCORER, "Overflowing", "torch.float16"),
    _broken("score-short", Kind.SCORER, "LongOnly", "RuntimeError"),
    _broken("padding", Kind.SCORER, "PaddingMean", "padding"),
    _broken("row-order", Kind.SCORER, "FirstRowFirst", "row"),
    _broken("head-layouts", Kind.SCORER, "TwoHeads", "ValueError"),
    _broken("ropes", Kind.SCORER, "AlwaysRotated", "no rope"),
    _broken("deterministic", Kind.SCORER, "Dice", "differ"),
    _broken("process", Kind.SCORER, "Seeding", "torch's global random generator"),
    _broken("pure", Kind.SCORER, "InPlace", "keys"),
    _broken("needs", Kind.SCORER, "Peeking", "lexical features"),
    _broken("device", Kind.SCORER, "Homeless", "add"),
    _broken("no-square", Kind.SCORER, "Square", "4.0 x"),
    _broken("cost", Kind.SCORER, "Slow", "x prefill"),
    _broken("calibration", Kind.SCORER, "Fickle", "others the second time"),
    _broken("select-mask", Kind.SELECTOR, "Numbers", "torch.int64"),
    _broken("select-count", Kind.SELECTOR, "Evened", "[0, 3]"),
    _broken("select-eligible", Kind.SELECTOR, "Tempted", "infinite"),
    _broken("select-ties", Kind.SELECTOR, "LastFirst", "lowest position"),
    _broken("select-pure", Kind.SELECTOR, "Masking", "scores"),
    _broken("merge-count", Kind.MERGER, "OneLess", "[[8, 8], [8, 8]]"),
    _broken("merge-mass", Kind.MERGER, "Forgetful", "merged before"),
    _broken("merge-mass", Kind.MERGER, "Inventive", "or less"),
    _broken("merge-bias", Kind.MERGER, "Unbiased", "of bias -1.5"),
    _broken("merge-equal", Kind.MERGER, "Shrinking", "it is off by"),
    _broken("merge-order", Kind.MERGER, "Backwards", "in this order"),
    _broken("merge-alone", Kind.MERGER, "Smoothing", "differs"),
    _broken("merge-weights", Kind.MERGER, "Dividing", "all 0"),
    _broken("merge-pure", Kind.MERGER, "Overwriting", "values"),
    _broken("space-inverse", Kind.SPACE, "TwiceScaled", "off by"),
    _broken("space-keys-only", Kind.SPACE, "Shifting", "positions"),
    _broken("contract", Kind.ALLOCATOR, "NoAllocate", "`allocate`"),
    _broken("alloc-budgets", Kind.ALLOCATOR, "Fractions", "torch.float32"),
    _broken("alloc-budgets", Kind.ALLOCATOR, "Short", "exactly"),
    _broken("alloc-budgets", Kind.ALLOCATOR, "Boundless", "a head of each row takes"),
    _broken("alloc-budgets", Kind.ALLOCATOR, "Undeclared", "without declaring scope"),
    _broken("alloc-budgets", Kind.ALLOCATOR, "Lonely", "IndexError"),
    _broken("alloc-rows", Kind.ALLOCATOR, "FirstRow", "in a batch of rows"),
    _broken("alloc-slots", Kind.ALLOCATOR, "Early", "wherever the scores stand"),
    _broken("alloc-heads", Kind.ALLOCATOR, "Firstborn", "change places"),
    _broken("alloc-needs", Kind.ALLOCATOR, "Overhearing", "lexical features"),
    _broken("alloc-deterministic", Kind.ALLOCATOR, "Lottery", "twice"),
    _broken("alloc-deterministic", Kind.ALLOCATOR, "Reseeding", "torch's global random generator"),
    _broken("alloc-pure", Kind.ALLOCATOR, "Spending", "total"),
    _broken("contract", Kind.REFINER, "NoRefine", "`refine`", "helpers.broken_scorers:NoScore"),
    _broken("refine-place", Kind.REFINER, "Moving", "other positions"),
    _broken("refine-ratio-1", Kind.REFINER, "Restless", "bias differ"),
    _broken("refine-pure", Kind.REFINER, "Scribbling", "values"),
    _broken("padding", Kind.REFINER, "Widthwise", "padding: head 0: bias"),
    _broken("finite", Kind.REFINER, "Uncounted", "NaN or infinite"),
    _broken("needs", Kind.REFINER, "Listening", "lexical features"),
    _broken("deterministic", Kind.REFINER, "Drifting", "differ"),
    _broken("contract", Kind.CODEC, "NoDecode", "`decode`", "helpers.broken_scorers:NoScore"),
    _broken("codec-bytes", Kind.CODEC, "Fat", "bytes for"),
    _broken("codec-error", Kind.CODEC, "Boastful", "below 0.0001"),
    _broken("codec-heads", Kind.CODEC, "Shared", "head 0"),
    _broken("codec-padding", Kind.CODEC, "Unseeing", "numbers of keys differ"),
    _broken("codec-tensors", Kind.CODEC, "Hoarder", "numbers of keys differ"),
    _broken("codec-dtypes", Kind.CODEC, "Singular", "torch.float32"),
    _broken("codec-pure", Kind.CODEC, "Centring", "changed: keys"),
    _broken("codec-deterministic", Kind.CODEC, "Dithering", "numbers of keys differ"),
    _broken("codec-deterministic", Kind.CODEC, "Seeded", "torch's global random generator"),
    _broken("codec-device", Kind.CODEC, "Rooted", "add"),
    _broken("codec-attention", Kind.CODEC, "Fading", "off by"),
    _broken("exact-budget", Kind.STAGE, "Losing", "15, 15"),
    _broken("exact-budget", Kind.STAGE, "Overfull", "both count"),
    _broken("ratio-1", Kind.STAGE, "Scaling", "values"),
    _broken("protected-kept", Kind.STAGE, "Sinkless", "position 0"),
    _broken("order", Kind.STAGE, "Shuffling", "in this order"),
    _broken("total-mass", Kind.STAGE, "Discounting", "[45, 37, 30]"),
    _broken("exact-tokens", Kind.STAGE, "Disguised", "is no token of the prompt"),
    _broken("finite", Kind.STAGE, "Infinite", "bias"),
    _broken("dtypes", Kind.STAGE, "Widening", "torch.float16"),
    _broken("needs", Kind.STAGE, "Envious", "column sums"),
    _broken("held-scorers", Kind.SCORER, "Unnarrowed", "obs.score(self.inner)"),
    _broken("held-scorers", Kind.STAGE, "Unnarrowing", "obs.score(self.scorer)"),
    _broken("bias-kept", Kind.STAGE, "Resetting", "have another"),
    _broken("hybrids", Kind.STAGE, "Jealous", "missing"),
    _broken("attach-ratio-1", Kind.STAGE, "Scaling", "off by"),
    _broken("attach-generate", Kind.STAGE, "Losing", "slots in every layer"),
    _broken("attach-generate", Kind.ALLOCATOR, "Short", "exactly"),
    _broken("attach-ragged", Kind.STAGE, "Tiring", "off by"),
    _broken("attach-policy", Kind.STAGE, "Tiring", "numbers of values differ"),
    _broken("probe-traces", Kind.STAGE, "Probing", "torch's global random generator"),
    _broken("probe-traces", Kind.STAGE, "Retouching", "numbers of values differ"),
    _broken("task-samples", Kind.TASK, "LateSpan", "with a span at"),
    _broken("task-samples", Kind.TASK, "OneName", "two samples called 'sample'"),
    _broken("task-samples", Kind.TASK, "Facetless", "with the facets"),
    _broken("task-length", Kind.TASK, "OneMore", "513"),
    _broken("task-repeatable", Kind.TASK, "Hashing", "another process"),
    _broken("task-references", Kind.TASK, "Unasked", "neither in a turn"),
    _broken("task-scores", Kind.TASK, "Unranked", "one primary score"),
    _broken("task-scores", Kind.TASK, "Chatty", "'words'"),
    _broken("task-best", Kind.TASK, "Generous", "a worse right for ''"),
    _broken("task-best", Kind.TASK, "Stern", "right is 1 for a reference"),
    _broken("task-refuses", Kind.TASK, "Unchecked", "no contexts"),
    _broken("task-seeds", Kind.TASK, "Unseeded", "4 seeds"),
    _broken("metric-info", Kind.METRIC, "Misnamed", "'words'"),
    _broken("metric-value", Kind.METRIC, "Undefined", "nan"),
    _broken("metric-deterministic", Kind.METRIC, "Counting", "the same answer twice"),
    _broken("metric-nothing", Kind.METRIC, "Zero", "Missing"),
    _broken("metric-derived", Kind.METRIC, "Partial", "an answer for each of 4 trials"),
    _broken("metric-pure", Kind.METRIC, "Sorting", "an ordinary trial"),
    _broken("model-target", Kind.MODEL, "no-function", "str", "helpers.broken_metrics:NO_FUNCTION"),
    _broken("model-facts", Kind.MODEL, "long-facts", "licence", "helpers.sound_parts:folder", licence="MIT\nand more"),
)


def broken_registry() -> Registry:
    """kvfw's own parts and all the broken ones."""
    return register((*kvfw_parts(), *{broken.spec.name: broken.spec for broken in BROKEN}.values()))
