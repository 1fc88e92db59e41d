"""Independent work on several layers at once, on a CPU."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Done = TypeVar("Done")


def map_layers(work: Callable[[Item], Done], items: Iterable[Item], device: torch.device) -> list[Done]:
    """``work`` of every item, in order.

    On a CPU each of torch's threads takes whole items: compression is made of many small operations, and sharing each
    of them costs more than it gains. On other devices one after the other.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        return [work(item) for item in items]

    def alone() -> None:
        torch.set_num_threads(1)

    def inferred(item: Item) -> Done:
        # The mode belongs to a thread.
        with torch.inference_mode():
            return work(item)

    try:
        with ThreadPoolExecutor(threads, initializer=alone) as pool:
            try:
                return list(pool.map(inferred, items))
            except BaseException:
                # Also on an interruption: what has not begun is not begun any more.
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)
