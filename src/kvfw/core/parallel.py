"""Independent pieces of work at once, on a CPU."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Done = TypeVar("Done")


def at_once(work: Callable[[Item], Done], items: Iterable[Item], device: torch.device) -> list[Done]:
    """``work`` of every item, in order.

    On a CPU each of torch's threads takes whole items: compression is made of many small operations, and sharing each
    of them costs more than it gains. On other devices one after the other.
    """
    threads = torch.get_num_threads()
    each = list(items)
    if device.type != "cpu" or threads == 1 or len(each) == 1:
        return [work(item) for item in each]
    # Modes belong to a thread.
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def alone() -> None:
        torch.set_num_threads(1)

    def as_here(item: Item) -> Done:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return work(item)

    try:
        with ThreadPoolExecutor(threads, initializer=alone) as pool:
            try:
                return list(pool.map(as_here, each))
            except BaseException:
                # Also on an interruption: what has not begun is not begun any more.
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)
