"""Checks that a part is a pure function of its own inputs: no randomness, no side effects, no undeclared inputs."""

from dataclasses import replace
from itertools import product
from typing import cast

import torch

from kvfw.core.compress.merging import Merging, merge_together
from kvfw.core.compress.stages import Stage
from kvfw.core.contracts.parts import Refiner, Scorer
from kvfw.core.parts.part import Part, part_option
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Columns, Needs, Observation, References
from kvfw.verify.checks.compression import QUARTER, compressed, observed
from kvfw.verify.findings.property import CHANGING, COMPOSED, holds
from kvfw.verify.findings.subject import WINDOW_SCORES, Subject
from kvfw.verify.findings.verdict import Failed, NotApplicable, Verdicts
from kvfw.verify.instruments.observed import observe, tensors_of, three_rows
from kvfw.verify.instruments.states import bit_difference, head_slots
from kvfw.verify.instruments.surroundings import Surroundings, changed, reseed

#: A scorer that does no arithmetic: it looks at positions only.
PLAINEST = "position"
#: Kinds of parts that see observations, and may hold other scorers.
HOLDERS = frozenset({Kind.SCORER, Kind.STAGE})


@holds("deterministic", "the same input gives the same bits, always", CHANGING)
def deterministic(subject: Subject) -> Verdicts:
    """Reseeds the global generators and compresses something else in between."""
    obs, bound = observed(subject), subject.bound()
    reseed(1)
    first = bound.compress(obs, QUARTER)
    reseed(2)
    bound.compress(observe(three_rows()[:1], bound.needs), QUARTER[:1])
    if difference := bit_difference(first, bound.compress(obs, QUARTER)):
        yield Failed("the same bits for the same input, twice and after other calls", difference)


@holds("process", "random generators, threads and dtype stay as they are", CHANGING)
def leaves_process_alone(subject: Subject) -> Verdicts:
    """Ignores what the plainest part changes, too: run-time type checks draw random samples."""
    idle, seen = _changes(subject, PLAINEST), _changes(subject, subject.recipe)
    found = [name for name in seen if name not in idle]
    if found:
        yield Failed("a process as it was before the call", f"changed: {', '.join(found)}")


def _changes(subject: Subject, recipe: str) -> list[str]:
    bound = subject.bound(recipe)
    obs, before = observe(three_rows(), bound.needs), Surroundings()
    bound.compress(obs, QUARTER)
    return changed(before, Surroundings())


@holds("pure", "inputs are not modified", CHANGING)
def pure(subject: Subject) -> Verdicts:
    obs, bound = observed(subject), subject.bound()
    budget = QUARTER.clone()
    copies = {name: part.clone() for name, part in tensors_of(obs).items()}
    options = repr(subject.part)
    bound.compress(obs, budget)
    now = tensors_of(obs)
    touched = [name for name, part in copies.items() if not torch.equal(part, now[name])]
    touched += ["budget"] * (not torch.equal(budget, QUARTER))
    touched += ["the part's own options"] * (options != repr(subject.part))
    if touched:
        yield Failed("inputs that nobody writes to", f"changed: {', '.join(touched)}")


class Watcher:
    """A scorer that records when it is shown more than it declared."""

    def __init__(self) -> None:
        self.needs, self.shown = Needs(queries=3), list[str]()

    def score(self, obs: Observation) -> torch.Tensor:
        """Scores by position."""
        if obs.queries is not None and obs.queries.shape[2] > 3:
            self.shown.append(f"{obs.queries.shape[2]} queries where it asked for 3")
        self.shown += ["column sums"] * bool(obs.column_sums) + ["lexical features"] * (obs.lexical is not None)
        return obs.state.positions.clamp(min=0)


@holds("held-scorers", "a scorer that it holds sees only what it asks for", HOLDERS)
def held_scorers(subject: Subject) -> Verdicts:
    """Replaces each scorer that the part holds by a ``Watcher``."""
    part: Part = subject.part
    marks = {key: part_option(info) for key, info in type(part).model_fields.items()}
    held = {key: Watcher() for key, mark in marks.items() if mark is not None and mark.kind is Kind.SCORER}
    if not held:
        yield NotApplicable("it holds no scorer")
    values = {key: getattr(part, key) for key in marks}
    shown = {key: (each,) if isinstance(values[key], tuple) else each for key, each in held.items()}
    whole = type(part)(**values | shown)
    needs = cast(Stage | Scorer, whole).needs
    more = Needs(queries=needs.last(64) + 5, column_sums=frozenset({0, 7}), lexical=True)
    _answer(replace(subject, built=replace(subject.built, value=whole)), observe(three_rows(), needs | more))
    for key, watcher in held.items():
        if watcher.shown:
            yield Failed(f"obs.score(self.{key}): the scorer it holds sees what it asks for", watcher.shown[0])


@holds("bias-kept", "a slot that stays keeps the bias it has", COMPOSED)
def bias_kept(subject: Subject) -> Verdicts:
    """Compresses slots that already have biases, as an earlier compression may have fitted them."""
    if subject.rule.policy.refiners:
        yield NotApplicable("its refiners change the slots that stay")
        return
    obs = observed(subject)
    fitted = torch.randn(obs.state.bias.shape, generator=torch.Generator().manual_seed(8))
    obs = replace(obs, state=replace(obs.state, bias=obs.state.bias + fitted))
    state = subject.bound().compress(obs, QUARTER)
    same = (state.values[..., :, None, :] == obs.state.values[..., None, :, :]).all(-1) & state.valid[..., None]
    differ = int((same & (state.bias[..., None] != obs.state.bias[..., None, :])).sum())
    if differ:
        yield Failed("slots that stay with the bias they had", f"{differ} have another")


@holds("hybrids", "the result in a hybrid is what it is alone", COMPOSED)
def hybrids(subject: Subject) -> Verdicts:
    """Compresses alone before and after a hybrid; a selecting part must keep the same tokens in the hybrid."""
    if not subject.rule.policy.is_sum:
        yield NotApplicable("it stands for a whole policy, which is no term of a sum")
        return
    obs, alone = compressed(subject)
    bound = subject.bound()
    last = bound.stages[-1].consumes_rest
    mixed = subject.bound(f"position:0.5+{subject.recipe}:0.5" if last else f"{subject.recipe}:0.5+{WINDOW_SCORES}:0.5")
    together = mixed.compress(observe(three_rows(), mixed.needs), 2 * QUARTER)
    if difference := bit_difference(alone, bound.compress(obs, QUARTER)):
        yield Failed("the same bits before and after a hybrid ran", difference)
    if last:
        return
    for row, head in product(range(3), range(2)):
        ours, all_values = head_slots(alone, row, head)[1], head_slots(together, row, head)[1]
        missing = int((~(ours[:, None] == all_values).all(-1).any(-1)).sum())
        if missing:
            yield Failed(
                f"in {mixed.composition} the tokens that the part keeps alone",
                f"row {row}, head {head}: {missing} of {len(ours)} are missing",
            )


@holds("needs", "what it declares to need is enough, and it looks at nothing else", CHANGING)
def needs_enough(subject: Subject) -> Verdicts:
    """Runs with the declared observations, then adds undeclared ones, which must change nothing."""
    needs = subject.bound().needs
    exact = observe(three_rows(), needs)
    expected = _answer(subject, exact)
    for what, extra in undeclared(needs):
        full = observe(three_rows(), needs | extra)
        # A declared window keeps its width: a part is never shown a wider one.
        shown = replace(
            full,
            queries=exact.queries if needs.queries else full.queries,
            query_positions=exact.query_positions if needs.queries else full.query_positions,
        )
        if not torch.equal(_answer(subject, shown), expected):
            yield Failed(f"an answer that does not look at {what}, which it did not declare", "another answer with it")


def undeclared(needs: Needs) -> list[tuple[str, Needs]]:
    """Observations that are not in ``needs``, with their names."""
    found = {
        "the last queries": Needs(queries=6) if not needs.queries else needs,
        "column sums": Needs(column_sums=frozenset({0, 3})),
        "lexical features": Needs(lexical=True),
        "the output projection": Needs(projection=True),
        "columns of attention": Needs(columns=frozenset({Columns(2), Columns(over="max", heads="each")})),
        "reference queries": Needs(references=frozenset({References(7)})),
        "moments of queries": Needs(moments=frozenset({0, 3})),
        "token ids": Needs(ids=True),
        "token types": Needs(token_types=True),
    }
    return [(what, extra) for what, extra in found.items() if needs | extra != needs]


def _answer(subject: Subject, obs: Observation) -> torch.Tensor:
    """Scores, what a refiner gives, or what a stage keeps and merges.

    Calls the part directly, so that the observation is not narrowed.
    """
    if subject.spec.kind is Kind.SCORER:
        scorer: Scorer = subject.part
        return scorer.score(obs).masked_fill(~obs.middle, 0.0)
    if subject.spec.kind is Kind.REFINER:
        kept = subject.bound(WINDOW_SCORES)
        state = kept.compress(observe(three_rows(), kept.needs), QUARTER)
        found = cast(Refiner, subject.part).refine(state, obs)
        return torch.cat((found.values, found.bias[..., None]), -1)[found.valid]
    stage: Stage = subject.part if subject.spec.kind is Kind.STAGE else subject.bound().stages[0]
    outcome = stage.run(obs, obs.score, QUARTER, obs.middle)
    new = outcome.merged
    merged = merge_together([new])[0] if isinstance(new, Merging) else new
    return outcome.kept if merged is None else merged.keys
