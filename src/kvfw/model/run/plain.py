"""Decoding over transformers' own cache, to compare with."""

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from kvfw.core.state.state import KVState
from kvfw.model.compat.clock import clock_s
from kvfw.model.compat.versions import passed


@torch.inference_mode()
def plain_tokens_per_second(
    model: PreTrainedModel, states: dict[int, KVState], first_logits: Tensor, *, steps: int = 16, warmup: int = 2
) -> float:
    """Like :func:`kvfw.model.run.decode.tokens_per_second`, over transformers' own cache of these slots."""
    cache, token = DynamicCache(), int(first_logits[0].argmax())
    for index, state in states.items():
        cache.update(state.keys.clone(), state.values.clone(), index)
    started = clock_s(model.device)
    for step in range(warmup + steps):
        if step == warmup:
            started = clock_s(model.device)
        ids = torch.tensor([[token]], device=model.device)
        token = int(model(input_ids=ids, **passed(model, cache), use_cache=True).logits[0, -1].float().argmax())
    return steps / (clock_s(model.device) - started)
