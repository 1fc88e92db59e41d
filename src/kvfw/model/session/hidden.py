"""Norms of the hidden states that attention layers read."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvfw.model.inspect.layers import attention_modules


class HiddenNorms(threading.local):
    """Norms ``[B, n]`` of the tokens' hidden states at the input of each attention layer's last call in a thread."""

    def __init__(self) -> None:
        self.of_layer: dict[int, Tensor] = {}


@contextmanager
def hidden_norms(model: PreTrainedModel) -> Iterator[HiddenNorms]:
    """Records the norms of the model's forwards inside the block."""
    found = HiddenNorms()

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        found.of_layer[int(module.layer_idx)] = torch.linalg.vector_norm(hidden.float(), dim=-1)  # type: ignore[arg-type]

    with ExitStack() as undo:
        for module in attention_modules(model):
            undo.callback(module.register_forward_pre_hook(see, with_kwargs=True).remove)
        yield found
