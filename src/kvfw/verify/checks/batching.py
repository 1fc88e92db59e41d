"""Checks that a row's result depends on that row only: padding, row order, head layouts, dtypes."""

import torch

from kvfw.core.state.rope import Rope
from kvfw.verify.checks.compression import QUARTER, observed
from kvfw.verify.findings.property import CHANGING, holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Verdicts
from kvfw.verify.instruments.observed import (
    KEY_DIM,
    LENGTHS,
    RECENT,
    ROPE,
    SINKS,
    VALUE_DIM,
    observe,
    random_row,
    three_rows,
)
from kvfw.verify.instruments.states import number_fault, row_difference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: KV heads and query heads per KV head: grouped-query, multi-head and multi-query attention.
HEADS = ((2, 2), (4, 1), (1, 4), (1, 1), (2, 3))


@holds("padding", "a left-padded batch equals its rows one at a time; padding is never kept", CHANGING)
def padding(subject: Subject) -> Verdicts:
    bound, rows = subject.bound(), three_rows()
    together = bound.compress(observed(subject), QUARTER)
    for i, row in enumerate(rows):
        alone = bound.compress(observe([row], bound.needs), QUARTER[i : i + 1])
        if difference := row_difference(together, i, alone, 0):
            gap = max(LENGTHS) - row.length
            yield Failed("a left-padded row that comes out as it does alone", f"row with {gap} padding: {difference}")


@holds("row-order", "rows of a batch may stand in any order", CHANGING)
def row_order(subject: Subject) -> Verdicts:
    bound, rows, new = subject.bound(), three_rows(), (2, 0, 1)
    first = bound.compress(observe(rows, bound.needs), QUARTER)
    second = bound.compress(observe([rows[i] for i in new], bound.needs), QUARTER[list(new)])
    for place, i in enumerate(new):
        if difference := row_difference(second, place, first, i):
            yield Failed("rows that do not care about their place in the batch", f"row {i}: {difference}")


@holds("head-layouts", "works with grouped, multi-head and multi-query attention", CHANGING)
def head_layouts(subject: Subject) -> Verdicts:
    bound = subject.bound()
    for kv_heads, group in HEADS:
        obs = observe([random_row(40, 7, kv_heads=kv_heads, group=group)], bound.needs)
        state = bound.compress(obs, torch.full((1, kv_heads), 9))
        expected = (1, kv_heads, SINKS + RECENT + 9)
        if tuple(state.mass.shape) != expected or state.values.shape[-1] != VALUE_DIM:
            yield Failed(
                f"a state of shape {expected} with {kv_heads} KV heads and {kv_heads * group} query heads",
                f"{tuple(state.mass.shape)} with values of {state.values.shape[-1]} numbers",
            )


@holds("dtypes", "float32, float16 and bfloat16 caches come back in their own dtype", CHANGING)
def dtypes(subject: Subject) -> Verdicts:
    bound = subject.bound()
    for dtype in DTYPES:
        state = bound.compress(observe([random_row(40, 7, dtype=dtype)], bound.needs), torch.tensor([[9, 9]]))
        seen = (state.keys.dtype, state.values.dtype)
        if seen != (dtype, dtype):
            yield Failed(f"keys and values in the cache's own {dtype}", f"{seen[0]} and {seen[1]}")
        other = (state.positions.dtype, state.mass.dtype, state.bias.dtype)
        if set(other) != {torch.float32}:
            yield Failed("positions, masses and biases in float32", f"{other}")
        if fault := number_fault(state):
            yield Failed(f"finite numbers with a cache in {dtype}", fault)


@holds("ropes", "works in layers without rotation and with either layout", CHANGING)
def ropes(subject: Subject) -> Verdicts:
    bound = subject.bound()
    whole = Rope(torch.linspace(1.0, 0.01, KEY_DIM // 2), layout="interleaved")
    for what, rope in (("no rotation", None), ("interleaved pairs", whole), ("half of the head", ROPE)):
        state = bound.compress(observe([random_row(40, 7)], bound.needs, rope=rope), torch.tensor([[9, 9]]))
        counts = state.valid.sum(-1).tolist()
        if counts != [[SINKS + RECENT + 9] * 2] or number_fault(state):
            yield Failed(f"{SINKS + RECENT + 9} finite slots per head in a layer with {what}", f"{counts} slots")
