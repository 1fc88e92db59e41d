"""Records and settings for the tests of the store."""

from kvfw.core.contracts.records import TrialKey, TrialRecord

SETTINGS: dict[str, object] = {"model": "smollm2-135m", "sinks": 4, "decoding": {"max_new_tokens": 24}}


def numbered(number: int, response: str = "the code is K3Q9") -> TrialRecord:
    """A record that differs from others in its seed."""
    return TrialRecord(
        key=TrialKey(compose="snapkv", amount="ratio=4", sample=f"1024-50-{number}"),
        group=f"1024/{number}",
        facets={"context": 1024, "depth": 50.0, "seed": number},
        ratio=4.0,
        prompt_sha256="0" * 64,
        references=("K3Q9",),
        response=response,
        metrics={"recall": 1.0, "tok_s": None},
        reasons={"tok_s": "timed in the first sample of each stratum only"},
        seconds={"decode": 0.25},
        extra={"slots": 256.0},
    )


def seeds(records: tuple[TrialRecord, ...]) -> list[object]:
    return [record.facets["seed"] for record in records]
