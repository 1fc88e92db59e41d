"""The whole benchmark."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvfw.bench.bars import (
    BAR_TOKENS,
    COMPRESSION_BARS,
    H2O_BYTES,
    HELP_S,
    LIST_S,
    LOAD_S,
    MEMORY_RATIO,
    RATIO,
    RECENT,
    SINKS,
    SIXTEEN,
    WHOLE_BAR,
    Bar,
)
from kvfw.bench.compression import Cost, costs
from kvfw.bench.decoding import Speed, speeds
from kvfw.bench.peak import Peak, peak_of
from kvfw.bench.prompts import prompt_ids
from kvfw.bench.scaling import Growth, growths, scaling
from kvfw.bench.starting import command_s, load_s
from kvfw.bench.whole import Whole, whole
from kvfw.core.budget import amount
from kvfw.core.compressor import compressor
from kvfw.core.registry import Registry
from kvfw.core.spec import parse
from kvfw.model.load import LoadedModel, load_config, load_model, load_tokenizer, resolve_model
from kvfw.runner.facts import hardware
from kvfw.runner.limits import check_positions

#: Slots per head over which decode speed is measured.
KEPT_SLOTS = (128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        model: embedded name, folder or hub id.
        device: as for an evaluation.
        compose: compositions whose cost is measured beside those of the bars.
        contexts: prompt lengths on the model.
        scaling: prompt lengths on a small random model; none: left out.
        repeats: rounds of every measurement.
    """

    model: str = "smollm2-135m"
    device: str = "auto"
    compose: tuple[str, ...] = ()
    contexts: tuple[int, ...] = (512, 1024, 2048, 3072, 4096)
    scaling: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768)
    repeats: int = 3


@dataclass(frozen=True)
class Findings:
    """Everything measured in one run.

    Attributes:
        hardware: the machine.
        bars: the promises.
        costs: compression by composition and length, on the model.
        speeds: decoding by slots.
        whole: one evaluation of many compositions.
        peaks: memory of a prefill by composition (``full``: the model's own).
        scaling, growths: on the random model.
    """

    hardware: dict[str, object]
    bars: tuple[Bar, ...]
    costs: tuple[Cost, ...]
    speeds: tuple[Speed, ...]
    whole: Whole
    peaks: dict[str, Peak]
    scaling: tuple[Cost, ...]
    growths: tuple[Growth, ...]


def run(request: Request, registry: Registry, tell: Callable[[str], None]) -> Findings:
    """Measures; takes minutes.

    Raises:
        RequestError: an unknown model or composition, or a length that cannot be compressed; before anything is timed.
    """
    compositions = tuple(dict.fromkeys(str(parse(text, registry)) for text in (*COMPRESSION_BARS, *request.compose)))
    bound = [
        compressor(parse(text, registry), amount(ratio=RATIO), sinks=SINKS, recent=RECENT, registry=registry)
        for text in compositions
    ]
    source = resolve_model(request.model, registry)
    tokenizer = load_tokenizer(source)
    contexts = tuple(sorted({*request.contexts, BAR_TOKENS}))
    model_config = load_config(source)
    for tokens in contexts:
        check_positions("a context of", tokens, 16, request.model, model_config)
        amount(ratio=RATIO).middle_slots(max(tokens - SINKS - RECENT, 0), SINKS, RECENT)
    prompts = {tokens: prompt_ids(tokenizer, tokens, registry) for tokens in contexts}
    loaded = load_model(source, device=request.device)
    found: list[Cost] = []
    for tokens, ids in prompts.items():
        tell(f"compression at {tokens} tokens")
        found.extend(costs(loaded.model, loaded.tokenizer, ids, bound, request.repeats))
    tell(f"a whole evaluation of {len(SIXTEEN)} compositions at {BAR_TOKENS} tokens")
    evaluation = whole(loaded, request.model, SIXTEEN, BAR_TOKENS, 16, max(1, request.repeats - 1), registry)
    tell("decode speed")
    speed = speeds(
        loaded.model, prompts[BAR_TOKENS], KEPT_SLOTS, request.repeats, sinks=SINKS, recent=RECENT, registry=registry
    )
    tell("memory")
    peaks = _peaks(request, loaded, prompts[BAR_TOKENS])
    tell("starting and loading")
    start = (
        Bar("kvfw --help", HELP_S, command_s(["--help"], request.repeats), "s"),
        Bar("kvfw list", LIST_S, command_s(["list"], request.repeats), "s"),
        Bar("loading the model again", LOAD_S, load_s(request.model, request.repeats), "s"),
    )
    grown: tuple[Cost, ...] = ()
    if request.scaling:
        tell("scaling on a random model")
        light = [by for by in bound if not by.needs.lexical]
        grown = scaling(light, request.scaling, 1)
    bars = (*_whole_bar(evaluation), *_compression_bars(found), *_memory_bars(peaks), *start)
    return Findings(hardware(), bars, tuple(found), speed, evaluation, peaks, grown, growths(grown) if grown else ())


def _peaks(request: Request, loaded: LoadedModel, ids: Sequence[int]) -> dict[str, Peak]:
    """Memory of prefills, the smallest of several processes: what an allocator holds on to only ever adds."""
    device = str(loaded.model.device)

    def peak(compose: str | None, chunk: int | None) -> Peak:
        found = (
            peak_of(request.model, device, list(ids), compose, MEMORY_RATIO, chunk) for _ in range(request.repeats)
        )
        return min(found, key=lambda peak: peak.peak_bytes)

    return {
        "full": peak(None, None),
        "full, 256 tokens at a time": peak(None, 256),
        "snapkv": peak("snapkv", None),
        "h2o": peak("h2o", None),
    }


def _whole_bar(found: Whole) -> tuple[Bar, ...]:
    what = f"{found.compositions} compositions on one prompt of {found.tokens} tokens, against as many prefills"
    return (Bar(what, WHOLE_BAR, found.fraction),)


def _compression_bars(found: Sequence[Cost]) -> tuple[Bar, ...]:
    by_name = {cost.compose: cost for cost in found if cost.tokens == BAR_TOKENS}
    return tuple(
        Bar(f"{name}, of the prefill at {BAR_TOKENS} tokens", limit, by_name[str(parse(name))].fraction)
        for name, limit in COMPRESSION_BARS.items()
    )


def _memory_bars(peaks: dict[str, Peak]) -> tuple[Bar, ...]:
    plain, kept, summed = peaks["full"], peaks["snapkv"], peaks["h2o"]
    saved = plain.kv_bytes - kept.kv_bytes - kept.layer_bytes
    return (
        Bar("bytes held after compression, of slots x bytes per slot", 1.0, kept.kv_bytes / kept.expected_kv_bytes),
        Bar(
            "peak of an attached prefill, of the plain one's less what must have been freed",
            1.0,
            kept.peak_bytes / (plain.peak_bytes - saved),
        ),
        Bar("extra memory of h2o scoring", H2O_BYTES / 2**20, (summed.peak_bytes - kept.peak_bytes) / 2**20, "MB"),
    )
