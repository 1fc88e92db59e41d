"""Records for the tests of the report, made up but shaped like those of an experiment."""

from collections.abc import Iterable

from kvfw.core.contracts.records import MetricInfo, TrialKey, TrialRecord

METRICS = (
    MetricInfo(name="recall", title="Recall", unit="%", proportion=True, digits=1, higher_is_better=True, primary=True),
    MetricInfo(name="ref_ppl", title="Ref PPL", digits=3, higher_is_better=False),
    MetricInfo(name="self_ppl", title="Self PPL", digits=3, higher_is_better=False),
    MetricInfo(name="embed_cos", title="Embed", digits=4, higher_is_better=True),
    MetricInfo(name="hidden_cos", title="Hidden", digits=4, higher_is_better=True),
    MetricInfo(name="kv_mb", title="KV MB", unit="MB", digits=2, higher_is_better=False),
    MetricInfo(name="kv_overhead_mb", title="Overhead MB", unit="MB", digits=2, higher_is_better=False),
    MetricInfo(name="tok_s", title="Tok/s", unit="tok/s", digits=1, higher_is_better=True),
    MetricInfo(name="span_kept", title="Span kept", unit="%", digits=0, higher_is_better=True),
)

HYBRID = "snapkv:0.8+ewmeans_pre:0.2"
CONTEXTS, DEPTHS, SEEDS = (1024, 2048, 3072), (10.0, 30.0, 50.0, 70.0, 90.0), (0, 1, 2)


def record(
    compose: str = "snapkv",
    amount: str = "ratio=4",
    context: int = 1024,
    depth: float = 10.0,
    seed: int = 0,
    *,
    ratio: float | None = 4.0,
    metrics: dict[str, float | None] | None = None,
    reasons: dict[str, str] | None = None,
    response: str = "the code is K3Q9",
) -> TrialRecord:
    return TrialRecord(
        key=TrialKey(compose=compose, amount=amount, sample=f"{context}-{depth:g}-{seed}"),
        group=f"{context}/{seed}",
        facets={"context": context, "depth": depth, "seed": seed},
        ratio=ratio,
        prompt_sha256="ab" * 32,
        references=("K3Q9",),
        response=response,
        metrics={"recall": 1.0} if metrics is None else metrics,
        reasons=reasons or {},
    )


def experiment(
    rows: Iterable[tuple[str, str, float, int]] = (
        ("full", "ratio=1", 1.0, 41),
        ("snapkv", "ratio=4", 4.0, 38),
        (HYBRID, "ratio=4", 4.0, 36),
        ("snapkv", "ratio=8", 8.0, 21),
        ("uniform", "ratio=8", 8.0, 0),
    ),
) -> list[TrialRecord]:
    """Five rows of 45 trials; in each row the first ``hits`` trials of a fixed shuffle are hits."""
    made = []
    for compose, amount, ratio, hits in rows:
        grid = [(context, seed, depth) for context in CONTEXTS for seed in SEEDS for depth in DEPTHS]
        for at, (context, seed, depth) in enumerate(grid):
            first = seed == 0 and depth == DEPTHS[0]
            metrics: dict[str, float | None] = {
                "recall": float(at * 7 % 45 < hits),
                "ref_ppl": 1.1 + ratio * (at % 9) / 50,
                "kv_mb": context * 0.02 / ratio,
                "tok_s": 16.0 + ratio if first else None,
                "span_kept": None if compose == "full" else (at % 4) / 4,
            }
            reasons = {} if first else {"tok_s": "timed in the first trial of each length only"}
            if compose == "full":
                reasons["span_kept"] = "nothing was compressed"
            made.append(record(compose, amount, context, depth, seed, ratio=ratio, metrics=metrics, reasons=reasons))
    return made
