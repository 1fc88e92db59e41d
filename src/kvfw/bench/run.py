"""Runs the whole benchmark."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvfw.bench.clock import Tell, rounds
from kvfw.bench.compression import costs
from kvfw.bench.decoding import speeds, steps
from kvfw.bench.findings import Findings
from kvfw.bench.held import held
from kvfw.bench.limits import (
    BAR_TOKENS,
    COMPRESSION_BARS,
    MEMORY_RATIO,
    PROBED,
    PROBED_LIKE,
    RATIO,
    RECENT,
    SINKS,
    SIXTEEN,
)
from kvfw.bench.peak import Peak, peak_of
from kvfw.bench.refitting import refitting
from kvfw.bench.scaling import scaling
from kvfw.bench.startup import starting
from kvfw.bench.whole_evaluation import whole
from kvfw.core.compose.budget import amount
from kvfw.core.compose.build import build_part
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.contracts.task import Task, Tokenizer
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import Registry
from kvfw.errors import OptionError, PromptError, UnsupportedError
from kvfw.model.load.load import LoadedModel, open_model
from kvfw.runner.execute.provenance import hardware
from kvfw.runner.plan.limits import check_positions

#: Slots per head over which decode speed is measured.
KEPT_SLOTS = (128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        model: embedded name, folder or hub id.
        device: as for an evaluation.
        compose: compositions to measure besides those of the promises.
        contexts: prompt lengths on the model; that of the promises is added if the model has positions for it.
        scaling: prompt lengths on a small random model; with none, scaling is not measured.
        repeats: rounds of every measurement.
    """

    model: str = "smollm2-135m"
    device: str = "auto"
    compose: tuple[str, ...] = ()
    contexts: tuple[int, ...] = (3072,)
    scaling: tuple[int, ...] = ()
    repeats: int = 3


def run(request: Request, registry: Registry, tell: Tell) -> Iterator[Findings]:
    """Measures; takes minutes.

    Yields:
        everything measured so far, before the first part and after each one, so that an early stop loses little and a
            write error shows at once. The last is complete.

    Raises:
        RequestError: an unknown model or composition, or a length that cannot be compressed; before anything is timed.
    """
    compositions = dict.fromkeys(parse(text, registry) for text in (*COMPRESSION_BARS, *request.compose))
    bound = [compressor(each, amount(ratio=RATIO), sinks=SINKS, recent=RECENT) for each in compositions]
    opened = open_model(request.model, registry=registry)
    at = _length_of_promises(request, opened.config)
    contexts = tuple(sorted({*request.contexts, at}))
    for tokens in contexts:
        check_positions("a context of", tokens, 16, request.model, opened.config)
    lengths = tuple(sorted(set(request.scaling)))
    for tokens in (*contexts, *lengths):
        _check_compressible(tokens)
    prompts = {tokens: _prompt_ids(opened.tokenizer, tokens, registry) for tokens in contexts}
    loaded = opened.load(device=request.device)

    def begin(what: str) -> Tell:
        tell(what)
        return lambda step: tell(f"{what}, {step}")

    found = Findings(hardware())
    yield found
    for tokens, ids in prompts.items():
        say = begin(f"compression at {tokens} tokens")
        measured = costs(loaded.model, loaded.tokenizer, ids, bound, request.repeats, say)
        found = replace(found, costs=(*found.costs, *measured))
        yield found
    say = begin(f"a whole evaluation of {len(SIXTEEN)} compositions at {at} tokens")
    found = replace(found, whole=whole(loaded, request.model, at, max(1, request.repeats - 1), say))
    yield found
    slots, say = tuple(slots for slots in KEPT_SLOTS if slots < at), begin("decode speed")
    found = replace(found, speeds=speeds(loaded.model, prompts[at], slots, request.repeats, say))
    yield found
    say = begin("decode steps over unequal heads and over transformers' cache")
    found = replace(found, steps=steps(loaded.model, prompts[at], request.repeats, say))
    yield found
    say = begin("a refit")
    found = replace(found, refit=refitting(loaded.model, loaded.tokenizer, prompts[at], request.repeats, say))
    yield found
    found = replace(found, held=held(loaded.model, loaded.tokenizer, prompts[at], begin("bytes held")))
    yield found
    found = replace(found, peaks=_peaks(request, loaded, prompts[at], begin("memory")))
    yield found
    found = replace(found, starting=starting(request.model, request.repeats, begin("starting and loading")))
    yield found
    light = [by for by in bound if not (by.needs.text or by.needs.probes)]
    for tokens in lengths:
        say = begin(f"scaling on a random model, {tokens} tokens")
        found = replace(found, scaling=(*found.scaling, *scaling(light, tokens, 1, say)))
        yield found
    yield replace(found, complete=True)


def _prompt_ids(tokenizer: Tokenizer, tokens: int, registry: Registry) -> tuple[int, ...]:
    """A prompt of the default task with exactly this many tokens."""
    task = build_part(Kind.TASK, f"niah(contexts=[{tokens}],depths=[50])", registry).value
    if not isinstance(task, Task):
        raise UnsupportedError("task 'niah' makes no prompts")
    (sample,) = task.samples(tokenizer)
    return sample.context_ids + sample.turns[0].exact_ids


def _check_compressible(tokens: int) -> None:
    if tokens <= SINKS + RECENT:
        raise OptionError(
            f"a prompt of {tokens} tokens has nothing to compress: {SINKS} sinks and {RECENT} recent tokens are always "
            f"kept. Take at least {SINKS + RECENT + RATIO}"
        )
    amount(ratio=RATIO).middle_slots(tokens - SINKS - RECENT, SINKS, RECENT)


def _length_of_promises(request: Request, model_config: Any) -> int:
    """The length that the promises are about, or the longest requested if the model has no positions for it."""
    try:
        check_positions("a context of", BAR_TOKENS, 16, request.model, model_config)
    except PromptError:
        return max(request.contexts)
    return BAR_TOKENS


def _peaks(request: Request, loaded: LoadedModel, ids: Sequence[int], tell: Tell) -> dict[str, Peak]:
    """Peak memory of prefills, the smallest of several processes: what an allocator retains only adds to it."""
    device = str(loaded.model.device)
    wanted: dict[str, tuple[str | None, int | None]] = {
        "full": (None, None),
        "full, 256 tokens at a time": (None, 256),
        PROBED_LIKE: (None, 2048),
        "snapkv": ("snapkv", None),
        "h2o": ("h2o", None),
        PROBED: (PROBED, 2048),
    }
    found: dict[str, list[Peak]] = {name: [] for name in wanted}
    for name, (compose, chunk) in wanted.items():
        for say in rounds(tell, request.repeats):
            say(name)
            found[name].append(peak_of(request.model, device, list(ids), compose, MEMORY_RATIO, chunk))
    return {name: min(peaks, key=lambda peak: peak.peak_bytes) for name, peaks in found.items()}
