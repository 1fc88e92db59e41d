"""Made-up records of the shape of the founding experiment, around its published values."""

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from helpers.report_examples import CONTEXTS, DEPTHS, HYBRID, METRICS, SEEDS
from kvfw.analysis.sources import Source
from kvfw.core.contracts.records import TrialKey, TrialRecord

PINNED = "pinned:0.65+ewmeans_post:0.35"
SETTINGS: dict[str, JsonValue] = {
    "compose": ["uniform", "streaming", "h2o", "snapkv", "ewmeans_post", "ewmeans_pre", PINNED, HYBRID],
    "amounts": ["ratio=4", "ratio=8"],
    "contexts": list(CONTEXTS),
    "depths": list(DEPTHS),
    "seeds": 3,
    "task": "niah",
    "question_aware": True,
    "haystack": None,
    "prompts_sha256": "ab" * 32,
    "model": "smollm2-135m",
    "sinks": 4,
    "recent": 84,
}
FACTS: dict[str, JsonValue] = {
    "versions": {"python": "3.11.2", "torch": "2.13.0"},
    "hardware": {"processor": "Some CPU", "cores": 2, "gpu": None},
    "revision": "0123abc",
}


class Published(NamedTuple):
    """A row of the published table, and about how much of the needle its method keeps."""

    compose: str
    ratio: int
    hits: tuple[int, ...]
    ref_ppl: float
    self_ppl: float
    embed: float
    hidden: float
    tok_s: float
    kept: float


NONE = (0, 0, 0, 0, 0)
TABLE = (
    Published("full", 1, (6, 9, 8, 9, 9), 1.114, 1.114, 1.0, 1.0, 16.2, 1.0),
    Published("uniform", 4, NONE, 3.223, 1.368, 0.5673, 0.9825, 19.6, 0.25),
    Published("streaming", 4, (0, 0, 0, 0, 3), 4.567, 1.361, 0.6087, 0.9814, 19.1, 0.2),
    Published("h2o", 4, (0, 2, 0, 0, 0), 1.722, 1.372, 0.7828, 0.9869, 20.0, 0.3),
    Published("snapkv", 4, (6, 9, 8, 9, 6), 1.189, 1.160, 0.9553, 0.9974, 19.4, 0.93),
    Published("ewmeans_post", 4, NONE, 3.668, 1.370, 0.6222, 0.9806, 20.2, 0.01),
    Published("ewmeans_pre", 4, NONE, 3.413, 1.408, 0.6018, 0.9815, 18.1, 0.01),
    Published(PINNED, 4, (5, 8, 7, 8, 5), 1.216, 1.188, 0.8822, 0.9959, 18.9, 0.97),
    Published(HYBRID, 4, (6, 9, 8, 8, 5), 1.187, 1.171, 0.9129, 0.9961, 20.2, 0.88),
    Published("uniform", 8, NONE, 4.765, 1.480, 0.6186, 0.9781, 18.4, 0.125),
    Published("streaming", 8, (0, 0, 0, 0, 3), 4.610, 1.355, 0.6052, 0.9811, 20.0, 0.2),
    Published("h2o", 8, (0, 1, 0, 0, 0), 2.358, 1.319, 0.5809, 0.9831, 21.1, 0.15),
    Published("snapkv", 8, (4, 7, 3, 5, 2), 1.434, 1.262, 0.8560, 0.9915, 19.9, 0.66),
    Published("ewmeans_post", 8, NONE, 4.945, 1.445, 0.5708, 0.9778, 20.4, 0.0),
    Published("ewmeans_pre", 8, NONE, 4.621, 1.513, 0.5824, 0.9778, 18.4, 0.0),
    Published(PINNED, 8, (4, 7, 2, 3, 2), 1.644, 1.327, 0.7622, 0.9891, 20.4, 0.61),
    Published(HYBRID, 8, (4, 7, 3, 4, 2), 1.610, 1.351, 0.7544, 0.9898, 20.3, 0.58),
)


def founding(table: Sequence[Published] = TABLE) -> list[TrialRecord]:
    """45 trials per row."""
    return [record for row in table for record in _row(row)]


def source(
    records: Sequence[TrialRecord] | None = None,
    name: str = "run",
    problems: tuple[str, ...] = (),
    changed: Mapping[str, JsonValue] | None = None,
) -> Source:
    """A run that holds these records, the founding ones by default."""
    return Source(
        name,
        {**SETTINGS, **(changed or {})},
        FACTS,
        tuple(founding() if records is None else records),
        METRICS,
        problems,
    )


def _row(row: Published) -> list[TrialRecord]:
    noise = random.Random(f"{row.compose} {row.ratio}")
    full = row.compose == "full"
    made = []
    for depth, hits in zip(DEPTHS, row.hits, strict=True):
        grid = [(context, seed) for context in CONTEXTS for seed in SEEDS]
        # The same prompts are the easy ones for every method.
        found = set(random.Random(depth).sample(grid, len(grid))[:hits])
        for context, seed in grid:
            first = seed == 0 and depth == DEPTHS[0]
            slots = (context - 88) // row.ratio + 88
            metrics: dict[str, float | None] = {
                "recall": float((context, seed) in found),
                "ref_ppl": math.exp(math.log(row.ref_ppl) * max(0.1, noise.gauss(1, 0.25))),
                "self_ppl": math.exp(math.log(row.self_ppl) * max(0.1, noise.gauss(1, 0.25))),
                "embed_cos": 1.0 if full else min(1.0, noise.gauss(row.embed, 0.05)),
                "hidden_cos": 1.0 if full else min(1.0, noise.gauss(row.hidden, 0.002)),
                "kv_mb": 28672 * slots / 2**20,
                "kv_overhead_mb": 0.0 if full else 672 * slots / 2**20,
                "tok_s": noise.gauss(row.tok_s, 0.5) if first else None,
                "span_kept": row.kept if row.kept in (0.0, 1.0) else min(1.0, max(0.0, noise.gauss(row.kept, 0.08))),
            }
            digest = hashlib.sha256(f"{context} {seed} {depth}".encode()).hexdigest()
            made.append(
                TrialRecord(
                    key=TrialKey(
                        compose=row.compose, amount=f"ratio={row.ratio}", sample=f"{context}-{depth:g}-{seed}"
                    ),
                    group=f"{context}/{seed}",
                    facets={"context": context, "depth": depth, "seed": seed},
                    ratio=float(row.ratio),
                    prompt_sha256=digest,
                    references=(digest[:8].upper(),),
                    response=f" {digest[:8].upper()}." if metrics["recall"] else " the whale, and the sea",
                    metrics=metrics,
                    reasons={} if first else {"tok_s": "timed in the first trial of each length only"},
                )
            )
    return made
