"""Routes a model's attention through a function of ours, and back. No forward is copied or patched."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from kvfw.errors import UnsupportedError

Attention = Callable[..., tuple[Tensor, Tensor | None]]

#: Numbers the routes: nested or concurrent ones never share a name.
_numbers = itertools.count()


class Observer(Protocol):
    """Sees every attention call of a model, and the padding mask of every forward."""

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes attention."""
        ...

    def see_padding(self, padding: Tensor | None) -> None:
        """Told before the layers run: the 2-D mask ``[B, seen + new]``, True for real tokens; None for all real."""
        ...


@contextmanager
def routed(model: PreTrainedModel, observer: Observer) -> Iterator[None]:
    """Inside the block all attention of ``model`` goes through ``observer``.

    The name under which it is registered lives as long as the block; afterwards, also after an exception, every
    configuration is as it was and transformers knows nothing of it any more.
    """
    name = f"kvfw_{next(_numbers)}"
    configs = {id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel)}
    before = {key: config._attn_implementation for key, config in configs.items()}
    base = model.config.get_text_config(decoder=True)._attn_implementation
    if base not in ALL_MASK_ATTENTION_FUNCTIONS:
        raise UnsupportedError(
            f"attention implementation {base!r} has no mask function, so kvfw cannot stand in for it; use sdpa or eager"
        )
    base_mask = ALL_MASK_ATTENTION_FUNCTIONS[base]

    def mask(*args: Any, **kwargs: Any) -> Any:
        observer.see_padding(kwargs.get("attention_mask"))
        return base_mask(*args, **kwargs)

    AttentionInterface.register(name, observer.attend)
    AttentionMaskInterface.register(name, mask)
    try:
        for config in configs.values():
            config._attn_implementation_internal = name
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)
