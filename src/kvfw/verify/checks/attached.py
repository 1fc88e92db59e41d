"""Runs the part inside a model's own ``generate``: a small random Llama with grouped queries."""

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from kvfw.model.compat.versions import passed
from kvfw.model.load.random_llama import random_llama
from kvfw.model.session.attach import attach
from kvfw.verify.findings.property import CHANGING, holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Verdicts
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


def _attached(subject: Subject, ratio: int) -> Any:
    composition = subject.bound().composition
    return attach(small_model(), composition, ratio=ratio, sinks=SINKS, recent=RECENT, tokenizer=tokenizer())


@holds("attach-ratio-1", "inside a model at ratio 1, logits and text are the full cache's", CHANGING)
@torch.inference_mode()
def identity(subject: Subject) -> Verdicts:
    """Compares the logits after the prompt and the text that ``generate`` writes."""
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


@holds("attach-generate", "generate works at ratio 4, and the model is unchanged after", CHANGING)
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
    if counts != [[expected] * 2] * 2:
        yield Failed(f"{expected} slots in every layer and head after {NEW} new tokens", f"{counts}")
    after: Tensor = model(input_ids=ids).logits
    if not (torch.equal(before, after)):
        yield Failed("the model's own logits after the block", "other logits")
