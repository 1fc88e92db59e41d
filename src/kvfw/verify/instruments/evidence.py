"""Artificial trials for metrics, so that no run is needed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from kvfw.core.contracts.metric import Evidence, Missing, Response, Shift
from kvfw.core.contracts.records import FULL, TrialKey, TrialRecord, vector_text
from kvfw.core.contracts.task import Sample, Turn
from kvfw.core.state.observation import Needs
from kvfw.core.state.state import KVState
from kvfw.verify.instruments.observed import observe, random_row

TOKENS = 40
TURN = Turn(question_ids=tuple(range(32, 36)), begun_ids=tuple(range(36, TOKENS)), references=("R7Q",))
SAMPLE = Sample(
    id="a",
    group="512/0",
    facets={"context": 512},
    context_ids=tuple(range(32)),
    turns=(TURN,),
    spans=(range(10, 18),),
)


@dataclass(frozen=True)
class MadeUpEngine:
    """Answers as a model would, from the tokens alone.

    Args:
        offset: added to every number, as if another model had answered.
        encoder: whether it has sentence embeddings.
    """

    offset: float = 0.0
    encoder: bool = True

    def nll(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Numbers from 0.1 to 2, for the second token and later ones."""
        return tuple(0.1 + self.offset + (token * 7919 % 100) / 53 for token in tokens[1:])

    def shift(self, tokens: tuple[int, ...]) -> Shift:
        """Numbers from 0.1 to 2 and every third token another, as in ``nll``."""
        nll = self.nll(tokens)
        return Shift(nll, tuple(i % 3 != 2 for i in range(len(nll))))

    def hidden(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """A vector of 16 numbers; none for one token."""
        if len(tokens) < 2:
            return ()
        rng = random.Random(repr(tokens))
        return tuple(rng.gauss(1.0, 1.0) + self.offset for _ in range(16))

    def similarity(self, text: str, other: str) -> float | Missing:
        """1 for equal texts, 0.5 for others."""
        return (1.0 if text == other else 0.5) if self.encoder else Missing("no sentence encoder")

    def tokens_per_second(self) -> float:
        """A constant."""
        return 12.5


def states() -> dict[int, KVState]:
    """Two layers of a compressed cache; most of the sample's span is kept."""
    state = observe([random_row(TOKENS, 11)], Needs()).state
    kept = torch.ones(TOKENS, dtype=torch.bool)
    kept[13:16] = False
    part = KVState(*(x[:, :, kept] for x in state.parts))
    return {0: part, 1: part}


LONG = Response((5, 8, 13, 2), "the code is R7Q")
OTHER = Response((5, 9, 21, 34, 2), "the code is lost")
ONE = Response((2,), "R")
EMPTY = Response((2,), "")


def ordinary() -> Evidence:
    """A trial in which everything can be measured."""
    return Evidence(
        sample=SAMPLE,
        turn=TURN,
        response=OTHER,
        reference=LONG,
        states=states(),
        positions_kept=True,
        kv_bytes=3 * 2**20,
        overhead_bytes=2**17,
        timed=True,
        engine=MadeUpEngine(offset=0.2),
        reference_engine=MadeUpEngine(),
        peak_bytes=4 * 2**20,
    )


def scenarios() -> Mapping[str, Evidence]:
    """Trials by a description of what is special about them."""
    usual, full = ordinary(), MadeUpEngine()
    return {
        "an ordinary trial": usual,
        "the full cache against itself": replace(usual, response=LONG, engine=full, reference_engine=full),
        "a response of one token": replace(usual, response=ONE),
        "one token in both responses": replace(usual, response=ONE, reference=ONE),
        "an empty response": replace(usual, response=EMPTY),
        "keys that were re-rotated": replace(usual, positions_kept=False),
        "a trial that is not timed": replace(usual, timed=False),
        "nothing to measure": nothing(),
    }


def nothing() -> Evidence:
    """A trial in which only bytes can be measured."""
    return replace(
        ordinary(),
        sample=replace(SAMPLE, spans=()),
        response=EMPTY,
        reference=EMPTY,
        states={},
        positions_kept=False,
        timed=False,
        engine=MadeUpEngine(encoder=False),
        reference_engine=MadeUpEngine(encoder=False),
    )


def records(names: tuple[str, ...], *, vectors: bool = True, seeds: int = 2) -> list[TrialRecord]:
    """Records of a run: the full cache and one composition, with a value and a vector of every metric named."""
    made = []
    for seed in range(seeds):
        for compose, amount in ((FULL, "ratio=1"), ("snapkv", "ratio=4")):
            rng = random.Random(f"{seed} {compose}")
            made.append(
                TrialRecord(
                    key=TrialKey(compose=compose, amount=amount, sample=f"512-50-{seed}"),
                    group=f"512/{seed}",
                    facets={"context": 512, "seed": seed},
                    ratio=1.0 if compose == FULL else 4.0,
                    prompt_sha256="0" * 64,
                    references=("R7Q",),
                    response="the code is R7Q",
                    metrics={name: 0.5 + rng.random() for name in names},
                    vectors={name: vector_text([rng.gauss(1.0, 1.0) for _ in range(16)]) for name in names}
                    if vectors
                    else {},
                )
            )
    return made
