"""Layers side by side: several threads give what one gives, and leave torch as it was."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Barrier

import pytest
import torch

from kvfw.model.run.parallel import map_layers

CPU = torch.device("cpu")


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads, however many the process was started with."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_two_layers_run_at_once_each_with_one_thread() -> None:
    met = Barrier(2, timeout=60)

    def work(layer: int) -> tuple[int, int, bool]:
        # Nobody gets past here alone.
        met.wait()
        return layer, torch.get_num_threads(), torch.is_inference_mode_enabled()

    assert map_layers(work, range(6), CPU) == [(layer, 1, True) for layer in range(6)]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_layer_that_fails_stops_the_rest_and_leaves_the_threads() -> None:
    begun = list[int]()

    def work(layer: int) -> int:
        begun.append(layer)
        if layer > 0:
            time.sleep(0.02)
            return layer
        raise ValueError("layer 0 has no keys")

    with pytest.raises(ValueError, match="layer 0 has no keys"):
        map_layers(work, range(500), CPU)
    assert len(begun) < 500
    assert torch.get_num_threads() == 2
