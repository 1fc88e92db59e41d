"""Every promise beside its measurement, or beside nothing where there is none yet."""

from collections.abc import Mapping, Sequence

from kvfw.bench.compression import Cost
from kvfw.bench.limits import BAR_TOKENS, COMPRESSION_BARS, H2O_BYTES, HELP_S, LIST_S, LOAD_S, SIXTEEN, WHOLE_BAR, Bar
from kvfw.bench.peak import Peak
from kvfw.bench.startup import Starting
from kvfw.bench.whole_evaluation import Whole
from kvfw.core.compose.composition import parse


def promises(
    costs: Sequence[Cost], whole: Whole | None, peaks: Mapping[str, Peak], starting: Starting | None
) -> tuple[Bar, ...]:
    """All of them, in the order in which they are shown.

    Promises are about prompts of one length; what was measured at another keeps or breaks none.
    """
    there = any(cost.tokens == BAR_TOKENS for cost in costs)
    return (
        _whole(whole if there else None),
        *_compression(costs),
        *_memory(peaks if there else {}),
        *_starting(starting),
    )


def _whole(found: Whole | None) -> Bar:
    what = f"{len(SIXTEEN)} compositions on one prompt of {BAR_TOKENS} tokens, against as many prefills"
    return Bar(what, WHOLE_BAR, found.fraction if found else None)


def _compression(found: Sequence[Cost]) -> tuple[Bar, ...]:
    by_name = {cost.compose: cost.fraction for cost in found if cost.tokens == BAR_TOKENS}
    return tuple(
        Bar(f"{name}, of the prefill at {BAR_TOKENS} tokens", limit, by_name.get(str(parse(name))))
        for name, limit in COMPRESSION_BARS.items()
    )


def _memory(peaks: Mapping[str, Peak]) -> tuple[Bar, ...]:
    held = peak = extra = None
    if peaks:
        plain, kept, summed = peaks["full"], peaks["snapkv"], peaks["h2o"]
        saved = plain.kv_bytes - kept.kv_bytes - kept.layer_bytes
        held = kept.kv_bytes / kept.expected_kv_bytes
        peak = kept.peak_bytes / (plain.peak_bytes - saved)
        extra = (summed.peak_bytes - kept.peak_bytes) / 2**20
    return (
        Bar("bytes held after compression, of slots x bytes per slot", 1.0, held),
        Bar("peak of an attached prefill, of the plain one's less what must have been freed", 1.0, peak),
        Bar("extra memory of h2o scoring", H2O_BYTES / 2**20, extra, "MB"),
    )


def _starting(found: Starting | None) -> tuple[Bar, ...]:
    return (
        Bar("kvfw --help", HELP_S, found.help_s if found else None, "s"),
        Bar("kvfw list", LIST_S, found.list_s if found else None, "s"),
        Bar("loading the model again", LOAD_S, found.load_s if found else None, "s"),
    )
