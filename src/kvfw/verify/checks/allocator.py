"""Checks an allocator on several layers of random prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvfw.core.compress.allocation import allocated, mean_budgets, scored_budgets
from kvfw.core.compress.scores import Scores
from kvfw.core.contracts.parts import LayerView
from kvfw.core.parts.part import scope_of
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs, Observation
from kvfw.verify.checks.behaviour import undeclared
from kvfw.verify.checks.compression import MIDDLES
from kvfw.verify.checks.untouched import untouched
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import WINDOW_SCORES, Subject
from kvfw.verify.findings.verdict import Failed, NotApplicable, Verdicts
from kvfw.verify.instruments.observed import LENGTHS, PromptRow, observe, random_row, tensors_of
from kvfw.verify.instruments.surroundings import Surroundings, changed, reseed

ALLOCATORS = frozenset({Kind.ALLOCATOR})
#: Layers of two KV heads each; the layer between is not compressed.
LAYERS = (0, 1, 3)
HEADS = 2
#: Mean slots per head of three prompts whose middles have 40, 32 and 25 tokens.
MEANS = {
    "a quarter of the middle": [10, 8, 6],
    "one slot per head": [1, 1, 1],
    "unequal rows": [39, 3, 12],
    "all but one token": [39, 31, 24],
    "the whole middle": [40, 32, 25],
}
QUARTER = torch.tensor(MEANS["a quarter of the middle"])


def prompts(layer: int) -> list[PromptRow]:
    """What a layer cached of three prompts; values grow with the layer, so that layers differ in more than noise."""
    rows = [random_row(length, 100 * layer + seed) for seed, length in enumerate(LENGTHS, start=1)]
    return [replace(row, keys=row.keys * (1 + 0.5 * layer), values=row.values * (1 + layer)) for row in rows]


def layers_of(needs: Needs, rows: Sequence[int] = (0, 1, 2)) -> dict[int, Observation]:
    """The layers, with some of the prompts as a left-padded batch."""
    return {i: replace(observe([prompts(i)[row] for row in rows], needs), layer=i) for i in LAYERS}


def budgets(subject: Subject, layers: dict[int, Observation], each: Tensor, recipe: str | None = None) -> Tensor:
    """Slots per row, layer and head, as a session asks for them: checked, and called by the allocator's scope."""
    bound = subject.bound(recipe)
    middle = torch.stack([obs.middle.sum(-1).amax(-1) for obs in layers.values()]).amax(0)
    mean = mean_budgets(bound, each, middle, dict.fromkeys(layers, HEADS))
    found = scored_budgets(bound.rules[0], mean, {i: Scores(obs) for i, obs in layers.items()})
    return torch.stack([found[i] for i in layers], 1)


@holds("alloc-budgets", "int64 budgets from 0 to the middle, in sum the total, for every total", ALLOCATORS)
def bounds(subject: Subject) -> Verdicts:
    """Calls it as its scope says: for layers that show nothing, for one layer, or for all."""
    layers = layers_of(subject.bound().needs)
    for what, each in MEANS.items():
        found = budgets(subject, layers, torch.tensor(each))
        total, sums = torch.tensor(each) * HEADS * len(LAYERS), found.sum((1, 2))
        exact = bool(getattr(subject.part, "exact", True))
        if not torch.equal(sums, total) and (exact or bool((sums > total).any())):
            yield Failed(f"{total.tolist()} slots{'' if exact else ' or fewer'} ({what})", f"{sums.tolist()}")
        if bool(((found < 0) | (found > MIDDLES[:, None, None])).any()):
            yield Failed(f"0 to {MIDDLES.tolist()} slots per head ({what})", f"{found.tolist()}")


@holds("alloc-rows", "a row of a batch gets what it gets alone, wherever it stands", ALLOCATORS)
def rows_alone(subject: Subject) -> Verdicts:
    needs = subject.bound().needs
    for what, each in MEANS.items():
        mean = torch.tensor(each)
        together = budgets(subject, layers_of(needs), mean)
        for rows in ((0,), (1,), (2,), (2, 0, 1)):
            found = budgets(subject, layers_of(needs, rows), mean[list(rows)])
            if not torch.equal(found, together[list(rows)]):
                yield Failed(
                    f"{together[list(rows)].tolist()} slots, as in the batch of three ({what})",
                    f"{found.tolist()} in a batch of rows {list(rows)}",
                )


@dataclass(frozen=True)
class DrawnScores:
    """A scorer whose scores are drawn, the higher the later the layer and head.

    ``shift``: by how many places the scores of the middle are moved, the last ones to the front.
    """

    shift: int = 0
    needs: Needs = field(default_factory=Needs)

    def score(self, obs: Observation) -> Tensor:
        """Scores above 0, for the middle of every row the same numbers wherever its padding ends."""
        g = torch.Generator().manual_seed(obs.layer)
        scores = torch.zeros(obs.state.mass.shape)
        drawn = torch.rand(*scores.shape[:2], max(LENGTHS), generator=g).square()
        drawn = drawn * (1 + obs.layer + torch.arange(scores.shape[1]))[:, None]
        for row in range(len(scores)):
            at = obs.middle[row, 0].nonzero()[:, 0]
            scores[row][:, at] = drawn[row][:, : len(at)].roll(self.shift, dims=-1)
        return scores


def _by_scores(subject: Subject, ranking: DrawnScores, each: Tensor) -> Tensor:
    """Budgets where these are the scores that it ranks by."""
    needs = getattr(subject.part, "needs", Needs())
    seen = {i: obs.narrowed(needs) for i, obs in layers_of(needs).items()}
    views = [LayerView(i, HEADS, MIDDLES.clone(), obs, ranking) for i, obs in seen.items()]
    pools = [[view] for view in views] if scope_of(subject.part) == "layer" else [views]
    total = each * HEADS
    found = [part for pool in pools for part in allocated(subject.part, total * len(pool), pool)]
    return torch.stack(found, 1)


@holds("alloc-slots", "the same scores at other slots give the same budgets", ALLOCATORS)
def slots_alike(subject: Subject) -> Verdicts:
    if scope_of(subject.part) == "shape":
        yield NotApplicable("it looks at shapes only")
    for what, each in MEANS.items():
        expected = _by_scores(subject, DrawnScores(), torch.tensor(each))
        found = _by_scores(subject, DrawnScores(shift=7), torch.tensor(each))
        if not torch.equal(found, expected):
            yield Failed(f"{expected.tolist()} slots wherever the scores stand ({what})", f"{found.tolist()}")


@holds("alloc-heads", "heads that change places take their budgets with them", ALLOCATORS)
def heads_alike(subject: Subject) -> Verdicts:
    """A slot of difference is rounding: what is left over goes to the first heads."""
    if scope_of(subject.part) == "shape":
        yield NotApplicable("it looks at shapes only")
    needs = subject.bound().needs
    layers = layers_of(needs)
    swapped = {
        i: replace(observe([_swapped(row) for row in prompts(i)], needs), layer=i, output_projection=_columns(obs))
        for i, obs in layers.items()
    }
    for what, each in MEANS.items():
        expected = budgets(subject, layers, torch.tensor(each)).flip(-1)
        found = budgets(subject, swapped, torch.tensor(each))
        if bool(((found - expected).abs() > 1).any()):
            yield Failed(f"{expected.tolist()} slots where heads change places ({what})", f"{found.tolist()}")


def _swapped(row: PromptRow) -> PromptRow:
    """The KV heads in reverse order, each with its own query heads."""
    queries = row.queries.view(HEADS, -1, *row.queries.shape[1:]).flip(0).flatten(0, 1)
    return replace(row, keys=row.keys.flip(0), values=row.values.flip(0), queries=queries)


def _columns(obs: Observation) -> Tensor | None:
    """The output projection for swapped heads."""
    weight = obs.output_projection
    return None if weight is None else weight.view(len(weight), HEADS, -1).flip(1).flatten(1)


@holds("alloc-needs", "it looks at nothing that it does not declare", ALLOCATORS)
def needs_enough(subject: Subject) -> Verdicts:
    """Shows it undeclared observations, which must change nothing."""
    if scope_of(subject.part) == "shape":
        yield NotApplicable("it looks at shapes only")
    needs = getattr(subject.part, "needs", Needs())
    expected = _shown(subject, needs)
    for what, extra in undeclared(needs):
        if not torch.equal(_shown(subject, needs | extra), expected):
            yield Failed(f"budgets that do not look at {what}, which it did not declare", "others with it")


def _shown(subject: Subject, needs: Needs) -> Tensor:
    views = [LayerView(i, HEADS, MIDDLES.clone(), obs, DrawnScores()) for i, obs in layers_of(needs).items()]
    pools = [[view] for view in views] if scope_of(subject.part) == "layer" else [views]
    return torch.stack([part for pool in pools for part in subject.part.allocate(QUARTER * HEADS * len(pool), pool)], 1)


@holds("alloc-deterministic", "the same layers get the same budgets, always", ALLOCATORS)
def deterministic(subject: Subject) -> Verdicts:
    """Reseeds the global generators and divides something else in between."""
    layers = layers_of(subject.bound().needs)
    reseed(1)
    first = budgets(subject, layers, QUARTER)
    reseed(2)
    budgets(subject, layers_of(subject.bound().needs, (1,)), QUARTER[1:2])
    second = budgets(subject, layers, QUARTER)
    if not torch.equal(first, second):
        yield Failed(f"{first.tolist()} slots, twice and after other calls", f"{second.tolist()}")
    # Run-time type checks draw random samples: what the plainest allocator by scores changes is not its own.
    idle = _changes(subject, layers, f"{WINDOW_SCORES}@global")
    if found := [name for name in _changes(subject, layers, subject.recipe) if name not in idle]:
        yield Failed("a process as it was before the call", f"changed: {', '.join(found)}")


def _changes(subject: Subject, layers: dict[int, Observation], recipe: str) -> list[str]:
    reseed(3)
    before = Surroundings()
    budgets(subject, layers, QUARTER, recipe)
    return changed(before, Surroundings())


@holds("alloc-pure", "totals, middles and observations are not modified", ALLOCATORS)
def inputs_kept(subject: Subject) -> Verdicts:
    needs = getattr(subject.part, "needs", Needs())
    layers = layers_of(needs)
    shapes = scope_of(subject.part) == "shape"
    views = [LayerView(i, HEADS, MIDDLES.clone(), None if shapes else obs, DrawnScores()) for i, obs in layers.items()]
    views = views[:1] if scope_of(subject.part) == "layer" else views
    total = QUARTER * HEADS * len(views)
    given = {"total": total} | {f"middle of layer {view.index}": view.middle for view in views}
    given |= {f"{name} of layer {i}": part for i, obs in layers.items() for name, part in tensors_of(obs).items()}
    return untouched(lambda: subject.part.allocate(total, views), given)
