"""Decoding over a compressed cache: greedy or sampled, teacher-forced, and timed."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvfw.core.contracts.metric import Shift
from kvfw.core.ops.divergence import shift_of
from kvfw.core.state.observation import Needs
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.compat.clock import clock_s
from kvfw.model.compat.versions import passed
from kvfw.model.run.sampling import Choose, best
from kvfw.model.session.plan import SessionPlan
from kvfw.model.session.session import Session, new_cache


def end_tokens(model: PreTrainedModel) -> frozenset[int]:
    """Ids at which a response ends, from the generation configuration."""
    ids = model.generation_config.eos_token_id if model.generation_config is not None else None
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


def decoding(
    model: PreTrainedModel, cache: CompressedCache, plan: SessionPlan | None = None
) -> AbstractContextManager[Session]:
    """Lets the model attend to this cache inside the block; it is compressed again only as planned."""
    return Session(model, cache, plan or SessionPlan(needs=Needs(), sinks=0, recent=0)).running()


def _forward(model: PreTrainedModel, tokens: Sequence[int], cache: CompressedCache) -> Tensor:
    """Logits ``[n, V]`` float32 of ``n`` tokens fed at once."""
    ids = torch.tensor([list(tokens)], device=model.device)
    logits: Tensor = model(input_ids=ids, **passed(model, cache), use_cache=True).logits
    return logits[0].float()


def greedy(
    model: PreTrainedModel, cache: CompressedCache, first_logits: Tensor, max_new_tokens: int
) -> tuple[int, ...]:
    """At least one token, by argmax of the raw logits, up to and including an end token.

    ``cache`` is the prompt's and grows; ``first_logits`` ``[1, V]`` are those of the prompt's last token.
    """
    return continued(model, cache, first_logits, max_new_tokens, best)


@torch.inference_mode()
def continued(
    model: PreTrainedModel, cache: CompressedCache, first_logits: Tensor, max_new_tokens: int, choose: Choose
) -> tuple[int, ...]:
    """Like :func:`greedy`, with every token chosen by ``choose``."""
    ends = end_tokens(model)
    tokens = [choose(first_logits[0])]
    with decoding(model, cache):
        while len(tokens) < max_new_tokens and tokens[-1] not in ends:
            tokens.append(choose(_forward(model, tokens[-1:], cache)[-1]))
    return tuple(tokens)


@dataclass(frozen=True)
class Written:
    """A response: its tokens, and the bytes of keys and values held after the prompt and after each forward."""

    tokens: tuple[int, ...]
    held: tuple[int, ...]


@torch.inference_mode()
def continued_planned(
    model: PreTrainedModel,
    plan: SessionPlan,
    prompt: Sequence[int],
    max_new_tokens: int,
    choose: Choose = best,
    *,
    chunk: int | None = None,
) -> Written:
    """Continues a prompt by at least one token, compressed as planned, just as an ``attach`` block does.

    ``choose`` chooses every token; ``chunk`` is the number of the prompt's tokens per forward, by default all.
    """
    cache = new_cache(model)
    cache.expect(len(prompt))
    with decoding(model, cache, plan):
        for part in torch.split(torch.tensor([list(prompt)], device=model.device), chunk or len(prompt), dim=1):
            logits = model(input_ids=part, **passed(model, cache), use_cache=True, logits_to_keep=1).logits
        return _written(model, cache, logits[:, -1].float(), max_new_tokens, choose)


@torch.inference_mode()
def greedy_recompressed(
    model: PreTrainedModel,
    cache: CompressedCache,
    plan: SessionPlan,
    first_logits: Tensor,
    max_new_tokens: int,
    *,
    before: Sequence[int] = (),
) -> Written:
    """Like :func:`greedy`, compressed again as planned; ``before`` are exact tokens that come first.

    ``cache`` is one of :meth:`kvfw.model.run.prefill.Prefill.to_be_continued` with this plan.
    """
    with decoding(model, cache, plan):
        held = cache.held_bytes()
        if before:
            first_logits = _forward(model, before, cache)[-1:]
        written = _written(model, cache, first_logits, max_new_tokens, best)
    return Written(written.tokens, (held, *written.held) if before else written.held)


def _written(
    model: PreTrainedModel, cache: CompressedCache, first_logits: Tensor, max_new_tokens: int, choose: Choose
) -> Written:
    """The response inside an open session, and the bytes held from now on."""
    ends = end_tokens(model)
    tokens, held = [choose(first_logits[0])], [cache.held_bytes()]
    while len(tokens) < max_new_tokens and tokens[-1] not in ends:
        tokens.append(choose(_forward(model, tokens[-1:], cache)[-1]))
        held.append(cache.held_bytes())
    return Written(tuple(tokens), tuple(held))


@dataclass(frozen=True)
class Forced:
    """A continuation fed over a cache.

    Args:
        nll: negative log-likelihoods (nats) of its tokens, without the first if nothing was fed before it.
        hidden: mean over the inputs y1...y(T-1) of the states after the final norm, ``[D]`` float32; None for T = 1.
        logits: of the tokens in ``nll``, ``[n, V]`` in the model's dtype, if they were to be kept.
        shift: against given logits; None without.
    """

    nll: tuple[float, ...]
    hidden: Tensor | None
    logits: Tensor | None = None
    shift: Shift | None = None


@torch.inference_mode()
def teacher_forced(
    model: PreTrainedModel,
    cache: CompressedCache,
    tokens: Sequence[int],
    *,
    before: Sequence[int] = (),
    plan: SessionPlan | None = None,
    keep_logits: bool = False,
    against: Tensor | None = None,
) -> Forced:
    """The likelihood of ``tokens``: feeds ``before`` and all but the last of them to the prompt's cache.

    ``before`` are exact tokens between the cached ones and these, such as a question over a compressed context. Without
    them token 1 has no likelihood: it comes from the prompt's logits and says nothing about the cache. They are fed at
    once, or, where ``plan`` compresses the cache again, in stretches between two compressions. ``against`` are logits
    that another cache kept for the same tokens.
    """
    predicted = list(tokens) if before else list(tokens[1:])
    nll, states, fed = list[float](), list[Tensor](), 0
    kept, shifts = list[Tensor](), list[Shift]()
    with decoding(model, cache, plan):
        for piece in _stretches(before, tokens[:-1], plan.compress_every if plan is not None else None):
            ids = torch.tensor([piece], device=model.device)
            output = model(input_ids=ids, **passed(model, cache), use_cache=True, output_hidden_states=True)
            # The last token before the continuation predicts its first one.
            first, fed = max(fed - max(len(before) - 1, 0), 0), fed + len(piece)
            aims = torch.tensor(predicted[first : fed - max(len(before) - 1, 0)], device=model.device)
            raw = output.logits[0, len(piece) - len(aims) :]
            logits = raw.float()
            if keep_logits:
                kept.append(raw)
            if against is not None:
                shifts.append(shift_of(against[first : first + len(aims)].float(), logits))
            nll += torch.nn.functional.cross_entropy(logits, aims, reduction="none").tolist()
            states.append(output.hidden_states[-1][0, max(len(before) - fed + len(piece), 0) :].float())
    hidden = torch.cat(states) if states else torch.zeros(0)
    return Forced(
        tuple(nll),
        hidden.mean(dim=0) if len(hidden) else None,
        torch.cat(kept) if kept else None,
        None if against is None else Shift(sum((s.kl for s in shifts), ()), sum((s.same for s in shifts), ())),
    )


def _stretches(before: Sequence[int], tokens: Sequence[int], every: int | None) -> Iterator[list[int]]:
    """What to feed at once: everything, or ``before``, then pieces that end where a compression is due."""
    if every is None:
        if before or tokens:
            yield [*before, *tokens]
        return
    if before:
        yield list(before)
    first = every - len(before) if len(before) < every else every
    for start, end in pairwise([0, *range(first, len(tokens), every), len(tokens)]):
        if end > start:
            yield list(tokens[start:end])


@torch.inference_mode()
def feed(model: PreTrainedModel, cache: CompressedCache, tokens: Sequence[int]) -> Tensor:
    """Appends exact tokens to a cache; returns the logits ``[1, V]`` float32 of the last."""
    with decoding(model, cache):
        return _forward(model, tokens, cache)[-1:]


@torch.inference_mode()
def tokens_per_second(
    model: PreTrainedModel,
    cache: CompressedCache,
    first_logits: Tensor,
    *,
    before: Sequence[int] = (),
    plan: SessionPlan | None = None,
    steps: int = 16,
    warmup: int = 2,
) -> float:
    """Decode speed at batch 1: ``steps`` greedy steps after ``warmup`` untimed ones, end tokens ignored.

    ``before`` are exact tokens that come first; compressions that ``plan`` asks for are part of the time.
    """
    with decoding(model, cache, plan):
        if before:
            first_logits = _forward(model, before, cache)[-1:]
        token = int(first_logits[0].argmax())
        started = clock_s(model.device)
        for step in range(warmup + steps):
            if step == warmup:
                started = clock_s(model.device)
            token = int(_forward(model, [token], cache)[-1].argmax())
        seconds = clock_s(model.device) - started
    return steps / seconds
