"""Routes a model's attention through kvfw, without copying or patching a forward."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvfw.errors import UnsupportedError

Attention = Callable[..., tuple[Tensor, Tensor | None]]

_F = TypeVar("_F", bound=Callable[..., Any])

#: Numbers the routes, so that those of two models never share a name.
_numbers = itertools.count()
#: Held while a block is entered or left: one thread at a time finds, makes and removes routes.
_lock = threading.Lock()


def uncompiled(function: _F) -> _F:
    """Keeps a function, and everything it calls, out of torch's compiler."""
    disable: Any = torch.compiler.disable
    kept: _F = disable(function)
    return kept


class Observer(Protocol):
    """Computes attention for the calls it owns."""

    def owns(self, module: nn.Module, key: Tensor) -> bool:
        """Whether this observer owns a call of attention, judging by the cache that its keys came from."""

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Computes attention."""

    def see_padding(self, padding: Tensor | None) -> None:
        """Receives, before each call, the mask ``[B, seen + new]``, True for real tokens; None if all are real."""


class _Route:
    """The one route of a model, which all open blocks on it share; each call goes to the block that owns it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.base: str = _implementation(model)
        if self.base not in ALL_MASK_ATTENTION_FUNCTIONS:
            raise UnsupportedError(
                f"attention implementation {self.base!r} has no mask function, so kvfw cannot stand in for it; use "
                "sdpa or eager"
            )
        self.name = f"kvfw_{next(_numbers)}"
        #: In order of entering; never changed in place, since other threads may be iterating over it.
        self.observers: tuple[Observer, ...] = ()
        self._base_mask = ALL_MASK_ATTENTION_FUNCTIONS[self.base]
        # A forward runs in one thread, and makes its mask before its layers attend.
        self._forward = threading.local()
        configs = {id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel)}
        self._before = [(config, config._attn_implementation) for config in configs.values()]

    def open(self) -> None:
        """Routes the model's attention."""
        AttentionInterface.register(self.name, self.attend)
        AttentionMaskInterface.register(self.name, self.mask)
        for config, _ in self._before:
            config._attn_implementation_internal = self.name

    def close(self) -> None:
        """Restores every configuration and unregisters the route."""
        for config, before in self._before:
            config._attn_implementation_internal = before
        AttentionInterface._global_mapping.pop(self.name, None)
        AttentionMaskInterface._global_mapping.pop(self.name, None)

    @uncompiled
    def mask(self, *args: Any, **kwargs: Any) -> Any:
        """Makes the mask of the model's own attention and remembers its padding."""
        self._forward.padding = kwargs.get("attention_mask")
        return self._base_mask(*args, **kwargs)

    @uncompiled
    def attend(self, module: nn.Module, query: Tensor, key: Tensor, *rest: Any, **kwargs: Any) -> Any:
        """Passes a call to its owner, or to the model's own attention. Not compiled, as observers are stateful."""
        owner = next((one for one in reversed(self.observers) if one.owns(module, key)), None)
        if owner is None:
            return model_attention(module, self.base)(module, query, key, *rest, **kwargs)
        owner.see_padding(getattr(self._forward, "padding", None))
        return owner.attend(module, query, key, *rest, **kwargs)


@contextmanager
def routed(model: PreTrainedModel, observer: Observer) -> Iterator[None]:
    """Passes the attention calls of ``model`` that ``observer`` owns to it, inside the block.

    Blocks on one model may be entered and left in any order and by several threads. When the last one ends, also by an
    exception, every configuration is restored and the route is unregistered.

    Raises:
        UnsupportedError: transformers makes no masks for the model's attention.
    """
    with _lock:
        found = _open_route(model)
        route = found or _Route(model)
        route.observers = (*route.observers, observer)
        if found is None:
            route.open()
    try:
        yield
    finally:
        with _lock:
            left = tuple(one for one in route.observers if one is not observer)
            if left:
                route.observers = left
            else:
                route.close()


def own_implementation(model: PreTrainedModel) -> str:
    """transformers' name of the model's own attention implementation, also while it is routed."""
    route = _open_route(model)
    return _implementation(model) if route is None else route.base


def model_attention(module: nn.Module, name: str) -> Attention:
    """The function that an attention module calls for one of transformers' implementation names."""
    home = sys.modules[type(module).__module__]
    found: Attention = home.eager_attention_forward if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
    return found


def _implementation(model: PreTrainedModel) -> str:
    name: str = model.config.get_text_config(decoder=True)._attn_implementation
    return name


def _open_route(model: PreTrainedModel) -> _Route | None:
    """The open route of a model, registered under the implementation name in its configuration."""
    found = getattr(AttentionInterface._global_mapping.get(_implementation(model)), "__self__", None)
    return found if isinstance(found, _Route) else None
