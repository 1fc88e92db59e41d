"""rkv and morphkv: values computed by hand, and their formulas in loops."""

from dataclasses import replace

import pytest
import torch

from helpers.observations import SCALE, PromptRow, observe, random_row
from helpers.slow import Vector, dot, slow_pool, softmax
from kvfw.core.ops.redundancy import redundancy
from kvfw.core.parts.part import is_comparable
from kvfw.core.state.observation import Observation
from kvfw.methods.scorers.morphkv import MorphKV
from kvfw.methods.scorers.rkv import RKV

SINKS, RECENT = 2, 3
LENGTHS = (21, 15)


def padded(window: int) -> tuple[list[PromptRow], Observation]:
    """Two rows of different length; the keys of the padding are not numbers."""
    rows = [random_row(length, seed, group=3) for seed, length in enumerate(LENGTHS)]
    obs = observe(rows, window=window)
    keys = obs.state.keys.masked_fill(~obs.state.valid[..., None], torch.nan)
    return rows, replace(obs, state=replace(obs.state, keys=keys))


def slow_rows(row: PromptRow, head: int, window: int, over: str) -> list[Vector]:
    """Of the tokens up to the middle's last one."""
    queries = row.queries[3 * head : 3 * head + 3].double().tolist()
    keys = row.keys[head].double().tolist()[: row.length - RECENT]
    rows = []
    for i in range(max(0, row.length - window), row.length):
        each = [[SCALE * dot(q[i], k) for q in queries] for k in keys[: i + 1]]
        seen = softmax([max(x) if over == "max" else sum(x) for x in each])
        rows.append(seen + [0.0] * (len(keys) - len(seen)))
    return rows


def slow_redundancy(keys: list[Vector], threshold: float) -> Vector:
    n = len(keys)
    units = [[x / dot(k, k) ** 0.5 for x in k] for k in keys]
    c = [[dot(a, b) if i != j else 0.0 for j, b in enumerate(units)] for i, a in enumerate(units)]
    for each in c:
        near = [j for j, x in enumerate(each) if x > threshold]
        if near:
            each[near[-1]] = 0.0
    return softmax([sum(c[i][j] for i in range(n)) / n for j in range(n)])


def test_of_keys_that_repeat_each_other_the_latest_is_spared() -> None:
    keys = torch.tensor([[1.0, 0], [1, 0.1], [0, 1]])[None, None]
    found = redundancy(keys, torch.ones(1, 1, 3, dtype=torch.bool), 0.5).flatten()
    torch.testing.assert_close(found, torch.tensor([0, 0.0995037 / 3, 0.0995037 / 3]).softmax(0))


def test_redundancy_in_blocks_is_redundancy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row = random_row(21, 1)
    valid = torch.ones(1, 2, 21, dtype=torch.bool)
    whole = redundancy(row.keys[None], valid, 0.2)
    monkeypatch.setattr("kvfw.core.ops.redundancy.BLOCK_ELEMENTS", 21 * 4)
    torch.testing.assert_close(redundancy(row.keys[None], valid, 0.2), whole)


@pytest.mark.parametrize("part", [RKV(), RKV(window=40, kernel=3, mix=0.5, threshold=0.1)], ids=str)
def test_rkv_is_attention_minus_redundancy(part: RKV) -> None:
    rows, obs = padded(part.window)
    scores = part.score(obs)
    for i, row in enumerate(rows):
        for head in range(2):
            seen = slow_rows(row, head, part.window, "max")
            important = [sum(column) / len(seen) for column in zip(*seen, strict=True)][SINKS:]
            repeated = slow_redundancy(row.keys[head].double().tolist(), part.threshold)[SINKS:-RECENT]
            pooled = slow_pool(important, part.kernel, "max")
            expected = [part.mix * a - (1 - part.mix) * b for a, b in zip(pooled, repeated, strict=True)]
            found = scores[i, head, SINKS - row.length : -RECENT]
            torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("part", [MorphKV(), MorphKV(window=4, fuse="sum")], ids=str)
def test_morphkv_fuses_the_attention_of_the_last_queries(part: MorphKV) -> None:
    rows, obs = padded(min(part.window, max(LENGTHS)))
    scores = part.score(obs)
    for i, row in enumerate(rows):
        for head in range(2):
            seen = slow_rows(row, head, part.window, "sum")
            fuse = max if part.fuse == "max" else sum
            expected = torch.tensor([fuse(column) for column in zip(*seen, strict=True)])
            found = scores[i, head, -row.length : -RECENT]
            torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-6)


def test_only_attention_is_compared_over_heads() -> None:
    assert is_comparable(MorphKV())
    assert not is_comparable(RKV())
