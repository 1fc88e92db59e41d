"""Caches that KIVI has coded, made number by number and held as plain slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvfw.core.compress.coding import Coder
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import KVState
from kvfw.methods.codecs.kivi import Kivi
from kvfw.model.cache.padded import PaddedStorage


def read_back(numbers: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """One group of numbers as its codes say."""
    low = float(np.float16(numbers.min()))
    step = float(np.float16((numbers.max() - low) / (2**bits - 1)))
    codes = [min(max(round((x - low) / step), 0), 2**bits - 1) if step else 0 for x in numbers]
    return np.array([low + step * code for code in codes])


def kivi(state: KVState, codec: Kivi, *, first: int = 0, last: int | None = None) -> KVState:
    """The state with the slots of every head coded that ``codec`` codes, or with slots ``first`` to ``last`` coded."""
    keys, values = (part.double().numpy().copy() for part in (state.keys, state.values))
    dim = values.shape[-1]
    channels = codec.group if dim % codec.group == 0 else dim
    for row, head in product(*map(range, state.mass.shape[:2])):
        own = state.valid[row, head].nonzero()[:, 0].numpy()
        end = (len(own) - codec.residual) // codec.group * codec.group if last is None else last
        for start in range(first, end, codec.group):
            at = own[start : start + codec.group]
            for channel in range(keys.shape[-1]):
                keys[row, head, at, channel] = read_back(keys[row, head, at, channel], codec.bits)
        for at, start in product(own[first : max(end, first)], range(0, dim, channels)):
            part = slice(start, start + channels)
            values[row, head, at, part] = read_back(values[row, head, at, part], codec.bits)
    made: list[Tensor] = [torch.from_numpy(part).to(state.keys.dtype) for part in (keys, values)]
    return replace(state, keys=made[0], values=made[1])


@contextmanager
def by_loops() -> Iterator[None]:
    """Coded caches are held decoded inside the block, padded."""

    def of(state: KVState, coder: Coder, obs: Observation | None = None) -> PaddedStorage:
        assert isinstance(coder.codec, Kivi)
        return PaddedStorage.of(kivi(state, coder.codec))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvfw.model.cache.layer.CodedStorage.of", of)
        yield
