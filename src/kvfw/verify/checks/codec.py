"""Checks a codec by calling it directly, and inside a model."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kvfw.core.compose.build import build_part
from kvfw.core.compress.coding import Coder, decoded, encoded
from kvfw.core.contracts.blame import needs_of
from kvfw.core.contracts.codec import Codec, CodedHeads, PlainHeads
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import ALL
from kvfw.model.cache.padded import PaddedStorage
from kvfw.model.compat.versions import passed
from kvfw.model.session.attach import attach
from kvfw.verify.checks.attached import SINKS, TOLERANCE, VOCABULARY, small_model
from kvfw.verify.checks.placement import Placement
from kvfw.verify.checks.untouched import untouched
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, NotApplicable, Passed, Verdicts
from kvfw.verify.instruments.observed import PADDING
from kvfw.verify.instruments.states import brief
from kvfw.verify.instruments.surroundings import Surroundings, changed, reseed

CODECS = frozenset({Kind.CODEC})
#: Heads coded together, query heads of each, sizes of a key and a value.
HEADS, GROUP, DIMS = 3, 2, (64, 32)
#: Slots to be coded, as near as the codec's groups allow.
SLOTS = 96
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Queries shown to a codec that asks for all.
MOST_QUERIES = 64


def _plain(subject: Subject, *, slots: int = SLOTS, dtype: torch.dtype = torch.float32) -> PlainHeads:
    """Heads of normally distributed numbers, some channels of keys larger than others, as in models."""
    made = torch.Generator().manual_seed(4)
    group = Coder(subject.part, "", 0).group
    count = -(-slots // group) * group
    loud = torch.ones(DIMS[0]).index_fill(0, torch.arange(0, DIMS[0], 7), 4.0)
    keys = torch.randn(HEADS, count, DIMS[0], generator=made) * loud
    values = torch.randn(HEADS, count, DIMS[1], generator=made)
    asked = needs_of(subject.part, "codec").queries
    width = MOST_QUERIES if asked == ALL else min(int(asked), MOST_QUERIES)
    plain = PlainHeads(keys.to(dtype), values.to(dtype), layer=0)
    if not width:
        return plain
    queries = torch.randn(HEADS, GROUP, width, DIMS[0], generator=made).to(dtype)
    return replace(plain, queries=queries, seen=torch.ones(HEADS, width, dtype=torch.bool))


def _read(subject: Subject, plain: PlainHeads) -> tuple[Tensor, Tensor]:
    """What attention sees of them."""
    return decoded(subject.part, encoded(subject.part, plain))


def _difference(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> str:
    for name, a, b in zip(("keys", "values"), ours, theirs, strict=True):
        if not torch.equal(a, b):
            return f"{int((a != b).sum())} of {a.numel()} numbers of {name} differ"
    return ""


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(part.untyped_storage().nbytes() for part in tensors.values())


@holds("codec-bytes", "its tensors have fewer bytes than the slots in float16", CODECS)
def fewer_bytes(subject: Subject) -> Verdicts:
    plain = _plain(subject, dtype=torch.float16)
    held, before = _bytes(encoded(subject.part, plain).tensors), plain.keys.nbytes + plain.values.nbytes
    figures = f"{held} bytes for {before}, {held / before:.3f} of them"
    if held >= before:
        yield Failed("fewer bytes than the slots have", figures)
    yield Passed(figures)


@holds("codec-error", "keys and values come back within the error it states", CODECS)
def error(subject: Subject) -> Verdicts:
    """The root mean square of the differences over that of the numbers; a codec that states none stays below 1."""
    bound = float(getattr(subject.part, "error", 1.0))
    plain = _plain(subject)
    read = _read(subject, plain)
    found = {
        name: float((after - before).norm() / before.norm())
        for name, before, after in zip(("keys", "values"), (plain.keys, plain.values), read, strict=True)
    }
    figures = ", ".join(f"{name} {size:.4f}" for name, size in found.items())
    if not all(size < bound for size in found.values()):
        yield Failed(f"a relative error below {bound:g}", figures)
    yield Passed(f"relative error: {figures}")


@holds("codec-heads", "a head is coded by itself, whatever is coded with it", CODECS)
def heads_apart(subject: Subject) -> Verdicts:
    plain = _plain(subject)
    together = _read(subject, plain)
    for head in range(HEADS):
        own = slice(head, head + 1)
        queries = None if plain.queries is None or plain.seen is None else (plain.queries[own], plain.seen[own])
        alone = replace(plain, keys=plain.keys[own], values=plain.values[own])
        if queries is not None:
            alone = replace(alone, queries=queries[0], seen=queries[1])
        if said := _difference((together[0][own], together[1][own]), _read(subject, alone)):
            yield Failed("the same keys and values as coded alone", f"head {head}: {said}")


@holds("codec-padding", "queries of padding do not matter", CODECS)
def padding(subject: Subject) -> Verdicts:
    plain = _plain(subject)
    if plain.queries is None or plain.seen is None:
        yield NotApplicable("it needs no queries")
        return
    half = plain.queries.shape[2] // 2
    real = replace(plain, queries=plain.queries[:, :, half:], seen=plain.seen[:, half:])
    before = torch.arange(plain.queries.shape[2]) < half
    loud = plain.queries.masked_fill(before[:, None], PADDING)
    padded = replace(plain, queries=loud, seen=plain.seen & ~before)
    if said := _difference(_read(subject, real), _read(subject, padded)):
        yield Failed("the same keys and values with padding before the queries", said)


@holds("codec-tensors", "what it holds is in its tensors: saved and loaded, it decodes to the same bits", CODECS)
def in_tensors(subject: Subject) -> Verdicts:
    """Decodes copies of the tensors, in another order, by a codec built anew from its canonical text."""
    coded = encoded(subject.part, _plain(subject))
    again = build_part(Kind.CODEC, subject.built.text, subject.registry).value
    assert isinstance(again, Codec)
    loaded = replace(coded, tensors={name: coded.tensors[name].clone() for name in sorted(coded.tensors)})
    if said := _difference(decoded(subject.part, coded), decoded(again, loaded)):
        yield Failed("the same keys and values from copies of its tensors", said)


@holds("codec-dtypes", "float32, float16 and bfloat16 come back in their own dtype, for any number of groups", CODECS)
def dtypes(subject: Subject) -> Verdicts:
    for dtype in DTYPES:
        for slots in (1, 5 * Coder(subject.part, "", 0).group):
            plain = _plain(subject, slots=slots, dtype=dtype)
            codes = CodedHeads(subject.part.encode(plain), 0, plain.keys.shape[1], DIMS, dtype)
            for name, part, before in zip(
                ("keys", "values"), subject.part.decode(codes), (plain.keys, plain.values), strict=True
            ):
                if part.dtype != dtype or part.shape != before.shape:
                    seen = f"{part.dtype} of shape {tuple(part.shape)}"
                    yield Failed(f"{name} in {dtype} of shape {tuple(before.shape)}", seen)
                if not bool(part.isfinite().all()):
                    yield Failed(f"finite {name} in {dtype}", brief(part[~part.isfinite()]))


@holds("codec-pure", "the tensors it is given are not modified", CODECS)
def pure(subject: Subject) -> Verdicts:
    plain = _plain(subject)
    given = {"keys": plain.keys, "values": plain.values}
    if plain.queries is not None:
        given["queries"] = plain.queries
    yield from untouched(lambda: subject.part.encode(plain), given)
    coded = encoded(subject.part, plain)
    yield from untouched(lambda: subject.part.decode(coded), coded.tensors)


@holds("codec-deterministic", "the same slots give the same codes, and random generators stay as they are", CODECS)
def deterministic(subject: Subject) -> Verdicts:
    plain = _plain(subject)
    reseed(1)
    first = _read(subject, plain)
    reseed(2)
    before = Surroundings()
    second = _read(subject, plain)
    if said := _difference(first, second):
        yield Failed("the same keys and values twice", said)
    # Run-time type checks draw from Python's own.
    if left := [what for what in changed(before, Surroundings()) if not what.startswith("Python")]:
        yield Failed("a process as it was before the call", f"changed: {', '.join(left)}")


@holds("codec-device", "everything stays on the device of the input", CODECS)
def device(subject: Subject) -> Verdicts:
    plain = _plain(subject)
    with Placement() as placement:
        _read(subject, plain)
    if placement.faults:
        met = ", ".join(sorted(set(placement.faults)))
        yield Failed("tensors made on the input's device", f"a tensor made without one meets the input in {met}")


@holds("codec-attention", "inside a model, attention over codes is attention over what they decode to", CODECS)
@torch.inference_mode()
def attention(subject: Subject) -> Verdicts:
    """Decodes a few tokens over every slot of a prompt, coded, and over the same slots decoded once and for all."""
    exact = Coder(subject.part, "", 0).exact
    tokens, new = exact + 2 * SLOTS, 6
    ids = torch.randint(3, VOCABULARY, (1, tokens + new), generator=torch.Generator().manual_seed(1))
    model, found, held = small_model(), [], list[int]()
    composition = subject.bound("full|$part").composition
    for plain in (False, True):
        with attach(model, composition, ratio=1, sinks=SINKS, recent=8) as cache:
            model(input_ids=ids[:, :tokens], **passed(model, cache), use_cache=True)
            for layer in cache.compressed_layers() if plain else ():
                layer.storage = PaddedStorage.of(layer.state)
            held.append(cache.held_bytes())
            steps = torch.split(ids[:, tokens:], 1, dim=1)
            found.append([model(input_ids=one, **passed(model, cache), use_cache=True).logits for one in steps])
    off = max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))
    if not off <= TOLERANCE:  # NaN is off, too
        yield Failed(f"the logits over the decoded slots within {TOLERANCE:g}", f"off by {off:.3g}")
    if held[0] >= held[1]:
        yield Failed(f"fewer than {held[1]} bytes held for a prompt of {tokens} tokens", f"{held[0]}")
