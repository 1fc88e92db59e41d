"""Independent pieces of work at once, on a CPU."""

from collections import deque
from collections.abc import Callable, Iterable
from threading import Semaphore, Thread
from typing import TypeVar

import torch

Item = TypeVar("Item")
Done = TypeVar("Done")


def at_once(work: Callable[[Item], Done], items: Iterable[Item], device: torch.device) -> list[Done]:
    """``work`` of every item, in order.

    On a CPU threads take whole items, and torch's own threads are divided among them: work is made of many operations,
    and sharing each of them costs more than it gains. On other devices one item after the other. Gradient and inference
    mode are the caller's; autocast and what else belongs to a thread are not carried over.

    Raises:
        BaseException: the first item's error, in order of items. What has not begun by then is not begun any more.
    """
    each = list(items)
    if device.type != "cpu" or min(len(each), torch.get_num_threads()) < 2:
        return [work(item) for item in each]
    return _by_threads(work, each)


def _by_threads(work: Callable[[Item], Done], each: list[Item]) -> list[Done]:
    # Not a pool of concurrent.futures, which refuses work once the main thread has ended.
    threads = torch.get_num_threads()
    takers = min(threads, len(each))
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    todo = deque(enumerate(each))
    done: dict[int, Done] = {}
    failed: dict[int, BaseException] = {}
    counted = Semaphore(0)

    def take() -> None:
        # Asked first: at its first question a thread takes the process's number over, whatever it was told before.
        torch.get_num_threads()
        torch.set_num_threads(threads // takers)
        counted.release()
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            while not failed:
                try:
                    place, item = todo.popleft()
                except IndexError:
                    return
                try:
                    done[place] = work(item)
                except BaseException as error:
                    failed[place] = error

    team: list[Thread] = []
    try:
        for _ in range(takers):
            thread = Thread(target=take)
            thread.start()
            team.append(thread)
        for _ in team:
            counted.acquire()
        # A thread's number is also what the process's next new thread starts with.
        torch.set_num_threads(threads)
        for thread in team:
            thread.join()
    finally:
        # Also on an interruption.
        todo.clear()
        for thread in team:
            thread.join()
        torch.set_num_threads(threads)
    if failed:
        raise failed[min(failed)]
    return [done[place] for place in range(len(each))]
