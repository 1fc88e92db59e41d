"""Observes the arguments of ``generate``: it gets all ids, the model's forward only those that are new to the cache."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

#: Held while a block is entered or left.
_lock = threading.Lock()
#: Receives the arguments of a call of ``generate``, by name.
Watcher = Callable[[Mapping[str, Any]], None]


class Watched:
    """A model's own ``generate``, which first shows each call to the open blocks."""

    def __init__(self, generate: Callable[..., Any], of_instance: bool) -> None:
        self.__wrapped__, self.of_instance = generate, of_instance
        self.watchers: list[Watcher] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = {"inputs": args[0], **kwargs} if args else kwargs
        for watcher in list(self.watchers):
            watcher(given)
        return self.__wrapped__(*args, **kwargs)


@contextmanager
def watched_generate(model: PreTrainedModel, watcher: Watcher) -> Iterator[None]:
    """Shows every ``model.generate`` inside the block to ``watcher``; blocks may end in any order.

    Only the instance is changed, not its class, and it is restored when the last block ends.
    """
    own: dict[str, Any] = model.__dict__
    if getattr(model, "generate", None) is None:
        yield
        return
    with _lock:
        found: Any = model.generate
        watched = found if isinstance(found, Watched) else Watched(found, "generate" in own)
        own["generate"] = watched
        watched.watchers.append(watcher)
    try:
        yield
    finally:
        with _lock:
            watched.watchers.remove(watcher)
            if not watched.watchers:
                own.pop("generate")
                if watched.of_instance:
                    own["generate"] = watched.__wrapped__
