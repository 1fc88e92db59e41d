"""Parallel work on layers, on a CPU."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Done = TypeVar("Done")


def map_layers(work: Callable[[Item], Done], items: Iterable[Item], device: torch.device) -> list[Done]:
    """``work(item)`` for every item, in order.

    On a CPU each of torch's threads takes whole items: compression consists of many small operations, and splitting
    each costs more than it gains. On other devices items run one after the other.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        return [work(item) for item in items]

    def inferred(item: Item) -> Done:
        with torch.inference_mode():  # the mode is per thread
            return work(item)

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                return list(pool.map(inferred, items))
            except BaseException:  # also on an interruption: do not start the remaining items
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)
