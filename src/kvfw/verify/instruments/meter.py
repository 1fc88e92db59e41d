"""Measures the memory that tensors take during a call."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch left it untyped
    """Tracks every tensor that operations create: the largest one, and the peak of bytes alive at once.

    Views do not count. Memory that an operation uses internally is not seen. Use an instance for one call only.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch left it untyped
        self.largest_bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, int] = {}
        self._inputs: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation and counts its new storages."""
        for given in tree_leaves((args, kwargs)):
            if isinstance(given, Tensor) and given.untyped_storage().data_ptr() not in self._alive:
                self._inputs.add(given.untyped_storage().data_ptr())
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, Tensor):
                self._count(made)
        return result

    def _count(self, made: Tensor) -> None:
        storage = made.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if size == 0 or place in self._alive or place in self._inputs:
            return
        self._alive[place] = size
        weakref.finalize(storage, self._alive.pop, place, None)
        self.largest_bytes = max(self.largest_bytes, size)
        self.peak_bytes = max(self.peak_bytes, sum(self._alive.values()))
