"""Decoding over a compressed cache: greedy, teacher-forced, and timed."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvfw.core.observation import Needs
from kvfw.model.cache import CompressedCache
from kvfw.model.session import Plan, Session


def end_tokens(model: PreTrainedModel) -> frozenset[int]:
    """Ids at which a response ends, from the generation configuration."""
    ids = model.generation_config.eos_token_id if model.generation_config is not None else None
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


def _session(model: PreTrainedModel, cache: CompressedCache) -> Session:
    return Session(model, cache, Plan(needs=Needs(), sinks=0, recent=0))


def _forward(model: PreTrainedModel, tokens: Sequence[int], cache: CompressedCache) -> Tensor:
    """Logits ``[n, V]`` float32 of ``n`` tokens fed at once."""
    ids = torch.tensor([list(tokens)], device=model.device)
    logits: Tensor = model(input_ids=ids, cache=cache, use_cache=True).logits
    return logits[0].float()


@torch.inference_mode()
def greedy(
    model: PreTrainedModel, cache: CompressedCache, first_logits: Tensor, max_new_tokens: int
) -> tuple[int, ...]:
    """Tokens of the greedy continuation: argmax of the raw logits, the end token included where one is reached.

    Args:
        cache: the prompt's cache; it grows.
        first_logits: ``[1, V]``, the prompt's own.
        max_new_tokens: at least 1.
    """
    ends = end_tokens(model)
    tokens = [int(first_logits[0].argmax())]
    with _session(model, cache).running():
        while len(tokens) < max_new_tokens and tokens[-1] not in ends:
            tokens.append(int(_forward(model, tokens[-1:], cache)[-1].argmax()))
    return tuple(tokens)


@torch.inference_mode()
def continuation_nll(model: PreTrainedModel, cache: CompressedCache, tokens: Sequence[int]) -> tuple[float, ...]:
    """Negative log-likelihoods (nats) of tokens 2...T of a continuation, teacher-forced in one forward.

    Token 1 comes from the prompt's logits and says nothing about the cache. Empty for a continuation of one token.
    """
    if len(tokens) < 2:
        return ()
    with _session(model, cache).running():
        logits = _forward(model, tokens[:-1], cache)
    targets = torch.tensor(list(tokens[1:]), device=logits.device)
    nll = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return tuple(float(value) for value in nll)


@torch.inference_mode()
def tokens_per_second(
    model: PreTrainedModel, cache: CompressedCache, first_logits: Tensor, *, steps: int = 16, warmup: int = 2
) -> float:
    """Decode speed at batch 1: ``steps`` greedy steps after ``warmup`` untimed ones, end tokens ignored."""
    token = int(first_logits[0].argmax())
    with _session(model, cache).running():
        started = time.perf_counter()
        for step in range(warmup + steps):
            if step == warmup:
                _synchronise(model)
                started = time.perf_counter()
            token = int(_forward(model, [token], cache)[-1].argmax())
        _synchronise(model)
    return steps / (time.perf_counter() - started)


def _synchronise(model: PreTrainedModel) -> None:
    """Waits for a GPU to finish, so that a clock reads finished work."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    elif model.device.type == "mps":
        torch.mps.synchronize()
