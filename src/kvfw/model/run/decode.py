"""Decoding over a compressed cache: greedy or sampled, teacher-forced, and timed."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from kvfw.core.state.observation import Needs
from kvfw.core.state.state import KVState
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


def decoding(model: PreTrainedModel, cache: CompressedCache) -> AbstractContextManager[Session]:
    """Lets the model attend to this cache, without compression, inside the block."""
    return Session(model, cache, SessionPlan(needs=Needs(), sinks=0, recent=0)).running()


def _forward(model: PreTrainedModel, tokens: Sequence[int], cache: Cache) -> Tensor:
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
    """A response: its tokens, and the bytes of keys and values held after the prompt and after each token fed."""

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
    cache, ends = new_cache(model), end_tokens(model)
    cache.expect(len(prompt))
    with Session(model, cache, plan).running():
        for part in torch.split(torch.tensor([list(prompt)], device=model.device), chunk or len(prompt), dim=1):
            logits = model(input_ids=part, **passed(model, cache), use_cache=True, logits_to_keep=1).logits
        tokens, held = [choose(logits[0, -1].float())], [cache.held_bytes()]
        while len(tokens) < max_new_tokens and tokens[-1] not in ends:
            tokens.append(choose(_forward(model, tokens[-1:], cache)[-1]))
            held.append(cache.held_bytes())
    return Written(tuple(tokens), tuple(held))


@dataclass(frozen=True)
class Forced:
    """A continuation fed over a cache in one forward.

    Args:
        nll: negative log-likelihoods (nats) of its tokens, without the first if nothing was fed before it.
        hidden: mean over the inputs y1...y(T-1) of the states after the final norm, ``[D]`` float32; None for T = 1.
    """

    nll: tuple[float, ...]
    hidden: Tensor | None


@torch.inference_mode()
def teacher_forced(
    model: PreTrainedModel, cache: CompressedCache, tokens: Sequence[int], *, before: Sequence[int] = ()
) -> Forced:
    """The likelihood of ``tokens``: feeds ``before`` and all but the last of them at once to the prompt's cache.

    ``before`` are exact tokens between the cached ones and these, such as a question over a compressed context. Without
    them token 1 has no likelihood: it comes from the prompt's logits and says nothing about the cache.
    """
    fed = [*before, *tokens[:-1]]
    if not fed:
        return Forced((), None)
    ids = torch.tensor([fed], device=model.device)
    with decoding(model, cache):
        output = model(input_ids=ids, **passed(model, cache), use_cache=True, output_hidden_states=True)
    predicted = list(tokens) if before else list(tokens[1:])
    logits = output.logits[0, len(fed) - len(predicted) :].float()
    nll = torch.nn.functional.cross_entropy(logits, torch.tensor(predicted, device=logits.device), reduction="none")
    states = output.hidden_states[-1][0, len(before) :].float()
    return Forced(tuple(nll.tolist()), states.mean(dim=0) if len(states) else None)


@torch.inference_mode()
def feed(model: PreTrainedModel, cache: CompressedCache, tokens: Sequence[int]) -> Tensor:
    """Appends exact tokens to a cache; returns the logits ``[1, V]`` float32 of the last."""
    with decoding(model, cache):
        return _forward(model, tokens, cache)[-1:]


@torch.inference_mode()
def tokens_per_second(
    model: PreTrainedModel, cache: CompressedCache, first_logits: Tensor, *, steps: int = 16, warmup: int = 2
) -> float:
    """Decode speed at batch 1: ``steps`` greedy steps after ``warmup`` untimed ones, end tokens ignored."""
    with decoding(model, cache):
        return _steps_per_second(model, cache, first_logits, steps, warmup)


@torch.inference_mode()
def plain_tokens_per_second(
    model: PreTrainedModel, states: Mapping[int, KVState], first_logits: Tensor, *, steps: int = 16, warmup: int = 2
) -> float:
    """Like :func:`tokens_per_second`, over transformers' own cache of these slots, one state for every layer."""
    cache = DynamicCache()
    for index, state in states.items():
        cache.update(state.keys.clone(), state.values.clone(), index)
    return _steps_per_second(model, cache, first_logits, steps, warmup)


def _steps_per_second(model: PreTrainedModel, cache: Cache, first_logits: Tensor, steps: int, warmup: int) -> float:
    token, started = int(first_logits[0].argmax()), clock_s(model.device)
    for step in range(warmup + steps):
        if step == warmup:
            started = clock_s(model.device)
        token = int(_forward(model, [token], cache)[-1].argmax())
    return steps / (clock_s(model.device) - started)
