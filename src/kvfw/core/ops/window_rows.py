"""The attention of the last queries, row by row, for methods that need more than a reduction of it."""

from collections.abc import Iterator

import torch
from jaxtyping import Float32
from torch import Tensor

from kvfw.core.state.observation import Observation


def window_rows(obs: Observation) -> Iterator[Float32[Tensor, "B g w N"]]:
    """The observed last queries' attention to every slot, one KV head after the other: memory for one head's rows.

    ``softmax(cap(scale * Q[-w:] K^T) + bias)`` over all slots a query may see (slot position <= query position), in
    float32, with the model's own cap and sinks. Rows of padding, rows that see nothing and empty slots are 0. Raises a
    RunError if the last queries were not declared.
    """
    queries, at = obs.window()
    state = obs.state
    heads = state.keys.shape[1]
    queries = queries.float().unflatten(1, (heads, -1)) * obs.scale
    sinks = None if obs.sink_logits is None else obs.sink_logits.float().view(heads, -1, 1, 1)
    for head in range(heads):
        valid = state.valid[:, head]
        keys = state.keys[:, head].float().masked_fill(~valid[..., None], 0.0)
        logits = queries[:, head] @ keys[:, None].mT
        if obs.softcap is not None:
            logits = (logits / obs.softcap).tanh() * obs.softcap
        seen = valid[:, None] & (state.positions[:, None, head] <= at[..., None])
        logits = (logits + state.bias[:, None, None, head]).masked_fill(~seen[:, None], -torch.inf)
        total = logits.logsumexp(-1, keepdim=True)
        if sinks is not None:
            total = torch.logaddexp(total, sinks[head])
        yield (logits - total).exp().masked_fill(~seen[:, None], 0.0)
