"""Runs the part inside a model's own ``generate``: a small random Llama with grouped queries."""

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from kvfw.core.contracts.parts import Allocator, LayerView
from kvfw.core.ops.rounding import by_weight
from kvfw.core.state.state import KVState
from kvfw.model.cache.padded import PaddedStorage
from kvfw.model.compat.versions import passed
from kvfw.model.load.random_llama import random_llama
from kvfw.model.session.attach import attach
from kvfw.verify.findings.property import RUNNING, holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, NotApplicable, Verdicts
from kvfw.verify.instruments.states import bit_difference
from kvfw.verify.instruments.surroundings import Surroundings, changed
from kvfw.verify.instruments.tokenizer import SuiteTokenizer

TOKENS, NEW = 90, 6
SINKS, RECENT = 4, 8
#: At least as many as the tokenizer has: a probe feeds its tokens to the model.
VOCABULARY = 600
#: Logits of size 10 in float32; the same sums in another order differ by 5e-6.
TOLERANCE = 1e-3


@cache
def small_model() -> Any:
    """Two layers of 4 heads on 2 KV heads."""
    return random_llama(layers=2, heads=4, kv_heads=2, head_dim=16, vocabulary=VOCABULARY)


@cache
def tokenizer() -> Any:
    """For parts that look at the prompt's text."""
    return SuiteTokenizer()


def _prompt(tokens: int = TOKENS) -> Tensor:
    return torch.randint(3, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(1))


def _generated(ids: Tensor, **options: Any) -> list[int]:
    out: Tensor = small_model().generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, **options
    )
    return cast(list[int], out[0, ids.shape[1] :].tolist())


def _attached(subject: Subject, ratio: int, recipe: str | None = None, allocator: Allocator | None = None) -> Any:
    return attach(
        small_model(),
        subject.bound(recipe).composition,
        ratio=ratio,
        sinks=SINKS,
        recent=RECENT,
        tokenizer=tokenizer(),
        allocator=allocator,
    )


@holds("attach-ratio-1", "inside a model at ratio 1, logits and text are the full cache's", RUNNING)
@torch.inference_mode()
def identity(subject: Subject) -> Verdicts:
    """Compares the logits after the prompt and the text that ``generate`` writes."""
    if not subject.exact:
        yield NotApplicable("its budgets may sum to less than the total")
    model, ids = small_model(), _prompt(TOKENS + NEW)
    expected: Tensor = model(input_ids=ids).logits[:, TOKENS:]
    with _attached(subject, 1) as cache:
        model(input_ids=ids[:, :TOKENS], **passed(model, cache), use_cache=True)
        seen: Tensor = model(input_ids=ids[:, TOKENS:], **passed(model, cache), use_cache=True).logits
    off = float((seen - expected).abs().max())
    if not off <= TOLERANCE:
        yield Failed(f"the full cache's logits within {TOLERANCE:g} at ratio 1", f"off by {off:.3g}")
    with _attached(subject, 1) as cache:
        text = _generated(ids[:, :TOKENS], **passed(model, cache))
    plain = _generated(ids[:, :TOKENS])
    if text != plain:
        yield Failed(f"the tokens {plain} at ratio 1", f"{text}")


@holds("attach-generate", "generate works at ratio 4, and the model is unchanged after", RUNNING)
@torch.inference_mode()
def generates(subject: Subject) -> Verdicts:
    model, ids = small_model(), _prompt()
    before: Tensor = model(input_ids=ids).logits
    with _attached(subject, 4) as cache:
        text = _generated(ids, **passed(model, cache))
        # The last token is never fed.
        expected = SINKS + RECENT + (TOKENS - SINKS - RECENT) // 4 + NEW - 1
        counts = [cache.state(i).valid.sum(-1).flatten().tolist() for i in range(2)]
    if len(text) != NEW:
        yield Failed(f"{NEW} new tokens at ratio 4", f"{len(text)}")
    if subject.rule.policy.allocator is not None:
        total = sum(map(sum, counts))
        if total > 4 * expected or (total < 4 * expected and subject.exact):
            yield Failed(f"{4 * expected} slots over all layers and heads after {NEW} new tokens", f"{counts}")
    elif counts != [[expected] * 2] * 2:
        yield Failed(f"{expected} slots in every layer and head after {NEW} new tokens", f"{counts}")
    after: Tensor = model(input_ids=ids).logits
    if not (torch.equal(before, after)):
        yield Failed("the model's own logits after the block", "other logits")


class UnequalHeads:
    """Gives the heads one, two, three ... shares of the slots, as far as their middles go."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        """Slots per layer and head."""
        heads = [layer.kv_heads for layer in layers]
        most = torch.cat([x.middle[:, None].expand(-1, x.kv_heads) for x in layers], 1)
        weights = torch.arange(1.0, sum(heads) + 1, dtype=torch.float64).expand(len(total), -1)
        return list(torch.split(by_weight(weights, total, most), heads, 1))


@holds("attach-ragged", "heads of unequal sizes give the logits of the same heads padded", RUNNING)
@torch.inference_mode()
def ragged(subject: Subject) -> Verdicts:
    """Decodes a few tokens from a cache whose heads differ in size, and from the same slots with empty ones."""
    model, ids = small_model(), _prompt(TOKENS + NEW)
    uneven = None if subject.rule.policy.allocator is not None else UnequalHeads()
    found = []
    for padded in (False, True):
        with _attached(subject, 4, allocator=uneven) as cache:
            model(input_ids=ids[:, :TOKENS], **passed(model, cache), use_cache=True)
            for layer in cache.compressed_layers() if padded else ():
                layer.storage = PaddedStorage.of(layer.state)
            tokens = torch.split(ids[:, TOKENS:], 1, dim=1)
            found.append([model(input_ids=one, **passed(model, cache), use_cache=True).logits for one in tokens])
    off = max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))
    if not off <= TOLERANCE:  # NaN is off, too
        yield Failed(f"the logits of the padded heads within {TOLERANCE:g}", f"off by {off:.3g}")


@holds("attach-policy", "with all layers named ([0-]) it does what it does without, bit for bit", RUNNING)
@torch.inference_mode()
def policy(subject: Subject) -> Verdicts:
    model, ids = small_model(), _prompt()
    states = []
    for recipe in (subject.recipe, f"[0-]{subject.recipe}"):
        with _attached(subject, 4, recipe) as cache:
            model(input_ids=ids, **passed(model, cache), use_cache=True)
            states.append([cache.state(i) for i in range(2)])
    for i, (plain, named) in enumerate(zip(*states, strict=True)):
        if difference := bit_difference(plain, named):
            yield Failed("the slots of the composition without layers", f"layer {i}: {difference}")


@holds("probe-traces", "a probe leaves no trace: cache, logits, random state, hooks and attention", RUNNING)
@torch.inference_mode()
def probe_traces(subject: Subject) -> Verdicts:
    """At ratio 1 cache and next logits are those of a composition without a probe; the rest also holds at ratio 4."""
    if not subject.bound().needs.probes:
        yield NotApplicable("it probes nothing")
    model, ids = small_model(), _prompt(TOKENS + 1)

    def run(recipe: str | None, ratio: int) -> tuple[list[KVState], Tensor, list[str]]:
        with _attached(subject, ratio, recipe) as cache:
            before, hooks = Surroundings(), _hooks(model)
            model(input_ids=ids[:, :TOKENS], **passed(model, cache), use_cache=True)
            left = changed(before, Surroundings())
            left += [what for what, one in hooks.items() if _hooks(model)[what] != one]
            states = [cache.state(i) for i in range(2)]
            return states, model(input_ids=ids[:, TOKENS:], **passed(model, cache), use_cache=True).logits, left

    # What the plainest part leaves behind is not the probe's: run-time type checks draw random samples.
    expected, plain, idle = run("position", 1)
    for ratio in (1, 4):
        if left := [what for what in run(None, ratio)[2] if what not in idle]:
            yield Failed("a process and a model as they were before the prompt", f"changed: {', '.join(left)}")
    if not subject.exact:
        return
    states, logits, _ = run(None, 1)
    for i, (ours, theirs) in enumerate(zip(states, expected, strict=True)):
        if difference := bit_difference(ours, theirs):
            yield Failed("the cache of a composition without a probe, at ratio 1", f"layer {i}: {difference}")
    if not torch.equal(logits, plain):
        yield Failed("the next logits of a composition without a probe, at ratio 1", "others")


def _hooks(model: Any) -> dict[str, object]:
    """The hooks of all its modules, and how it attends."""
    return {
        "hooks of the model": [
            (name, list(part._forward_hooks), list(part._forward_pre_hooks)) for name, part in model.named_modules()
        ],
        "its attention implementation": model.config._attn_implementation,
    }
