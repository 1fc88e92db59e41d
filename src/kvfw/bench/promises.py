"""Pairs every promise with its measurement, if there is one."""

from collections.abc import Mapping, Sequence

from kvfw.bench.compression import Cost
from kvfw.bench.decoding import Steps
from kvfw.bench.held import CODED, Held
from kvfw.bench.limits import (
    BAR_TOKENS,
    CODED_BAR,
    COMPRESSION_BARS,
    H2O_BYTES,
    HELP_S,
    LIST_S,
    LOAD_S,
    OWN_BAR,
    PROBE_BAR,
    PROBE_BYTES,
    PROBED,
    PROBED_LIKE,
    RAGGED_BAR,
    REFIT_BAR,
    SIXTEEN,
    UNEVEN_BAR,
    WHOLE_BAR,
    Bar,
)
from kvfw.bench.peak import Peak
from kvfw.bench.startup import Starting
from kvfw.bench.whole_evaluation import Whole
from kvfw.core.compose.composition import parse


def promises(
    costs: Sequence[Cost],
    whole: Whole | None,
    steps: Steps | None,
    peaks: Mapping[str, Peak],
    starting: Starting | None,
    refit: float | None = None,
    held: Sequence[Held] = (),
) -> tuple[Bar, ...]:
    """All promises, in display order. They are about one prompt length: measurements at another do not count."""
    fractions = {cost.compose: cost.fraction for cost in costs if cost.tokens == BAR_TOKENS}
    slots = peak = extra = probe = None
    if fractions and peaks:
        plain, kept, summed = peaks["full"], peaks["snapkv"], peaks["h2o"]
        saved = plain.kv_bytes - kept.kv_bytes - kept.layer_bytes
        slots = kept.kv_bytes / kept.expected_kv_bytes
        peak = kept.peak_bytes / (plain.peak_bytes - saved)
        extra = (summed.peak_bytes - kept.peak_bytes) / 2**20
        probe = (peaks[PROBED].peak_bytes - peaks[PROBED_LIKE].peak_bytes) / 2**20
    at_length = held if fractions else ()
    uneven = max((max(each.prompt, each.decoded) for each in at_length if each.compose != CODED), default=None)
    coded = max((each.prompt * each.bits / 16 for each in at_length if each.compose == CODED), default=None)
    every = f"{len(SIXTEEN)} compositions on one prompt of {BAR_TOKENS} tokens, against as many prefills"
    return (
        Bar(every, WHOLE_BAR, whole.fraction if whole and fractions else None),
        *(
            Bar(f"{name}, of the prefill at {BAR_TOKENS} tokens", limit, fractions.get(str(parse(name))))
            for name, limit in COMPRESSION_BARS.items()
        ),
        Bar(
            "a probe that repeats the prompt, of the prefill",
            PROBE_BAR,
            next((cost.probe for cost in costs if cost.tokens == BAR_TOKENS and cost.probe), None),
        ),
        Bar(
            "a decode step over heads of unequal size, of one over as many slots in equal heads",
            UNEVEN_BAR,
            steps.uneven if steps and fractions else None,
        ),
        Bar(
            "a decode step over kvfw's cache, of one over transformers' own with as many slots",
            OWN_BAR,
            steps.own if steps and fractions else None,
        ),
        Bar("a refit at ratio 8 with 1024 queries per head, of the prefill", REFIT_BAR, refit if fractions else None),
        Bar("bytes held after compression, of slots x bytes per slot", 1.0, slots),
        Bar(
            "the same, heads of unequal size, after the prompt and 64 tokens later",
            RAGGED_BAR,
            uneven,
        ),
        Bar("kivi(bits=4) without exact tokens, of float16 slots", CODED_BAR, coded),
        Bar("peak of an attached prefill, of the plain one's less what must have been freed", 1.0, peak),
        Bar("extra memory of h2o scoring", H2O_BYTES / 2**20, extra, "MB"),
        Bar("extra memory of a probe, beside a forward of as many tokens", PROBE_BYTES / 2**20, probe, "MB"),
        Bar("kvfw --help", HELP_S, starting.help_s if starting else None, "s"),
        Bar("kvfw list", LIST_S, starting.list_s if starting else None, "s"),
        Bar("loading the model again", LOAD_S, starting.load_s if starting else None, "s"),
    )
