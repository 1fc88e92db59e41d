"""Blocks on one model in any order, in several threads, and on compiled models: the model stays whole."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from helpers.tiny_models import build, generate, prompt, tiny
from kvfw.errors import UnsupportedError
from kvfw.model.cache.saved import load_cache
from kvfw.model.session.attach import attach

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
RATIOS = (2, 4, 8)


def is_whole(model: PreTrainedModel) -> bool:
    """Whether nothing of kvfw is left in a model or in transformers."""
    names = {*AttentionInterface._global_mapping, *AttentionMaskInterface._global_mapping}
    return model.config._attn_implementation == "sdpa" and not any(name.startswith("kvfw") for name in names)


def written(model: PreTrainedModel, ratio: int | None) -> list[list[int]]:
    """Tokens generated alone; without kvfw for no ratio."""
    with attach(model, "snapkv", ratio=ratio, **PROTECTED) if ratio else nullcontext() as cache:
        tokens: list[list[int]] = generate(model, prompt(60), 4, **({"cache": cache} if ratio else {})).tolist()
    return tokens


@pytest.fixture(scope="module")
def alone() -> tuple[PreTrainedModel, dict[int, list[list[int]]]]:
    """A model, and what it writes at each ratio."""
    model = tiny("llama")
    return model, {ratio: written(model, ratio) for ratio in RATIOS}


@settings(max_examples=25, deadline=None)
@given(order=st.permutations([0, 1, 2] * 3))
def test_blocks_entered_and_left_in_any_order_do_not_see_each_other(
    alone: tuple[PreTrainedModel, dict[int, list[list[int]]]], order: list[int]
) -> None:
    model, expected = alone
    blocks = [attach(model, "snapkv", ratio=ratio, **PROTECTED) for ratio in RATIOS]
    caches: dict[int, Any] = {}
    steps = [0] * len(blocks)
    # Which block goes on: it is entered, then used, then left.
    for block in order:
        if steps[block] == 0:
            caches[block] = blocks[block].__enter__()
        elif steps[block] == 1:
            assert generate(model, prompt(60), 4, cache=caches[block]).tolist() == expected[RATIOS[block]]
        else:
            blocks[block].__exit__(None, None, None)
        steps[block] += 1
    assert is_whole(model)


def test_interleaved_generators_write_what_each_writes_alone() -> None:
    model = tiny("llama")

    def answer(ratio: int) -> Iterator[list[list[int]]]:
        with attach(model, "snapkv", ratio=ratio, **PROTECTED) as cache:
            yield []
            yield generate(model, prompt(60), 4, cache=cache).tolist()

    expected = [written(model, ratio) for ratio in RATIOS]
    running = [answer(ratio) for ratio in RATIOS]
    assert [next(one) for one in running] == [[], [], []]
    assert [next(one) for one in running] == expected
    for one in running:
        assert next(one, None) is None
    assert is_whole(model)


def test_tasks_of_asyncio_write_what_each_writes_alone() -> None:
    model = tiny("llama")

    async def answer(ratio: int) -> list[list[int]]:
        with attach(model, "snapkv", ratio=ratio, **PROTECTED) as cache:
            await asyncio.sleep(0.01 * ratio)
            tokens: list[list[int]] = generate(model, prompt(60), 4, cache=cache).tolist()
            await asyncio.sleep(0.01 / ratio)
        return tokens

    async def all_answers() -> list[list[list[int]]]:
        return list(await asyncio.gather(*(answer(ratio) for ratio in RATIOS)))

    assert asyncio.run(all_answers()) == [written(model, ratio) for ratio in RATIOS]
    assert is_whole(model)


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads take turns every microsecond, so that they meet wherever they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_threads_on_one_model_write_what_each_writes_alone(name: str) -> None:
    model = tiny(name)
    ways = (*RATIOS, *RATIOS, None)
    expected = {ratio: written(model, ratio) for ratio in ways}
    found: list[object] = []

    def answer(ratio: int | None) -> None:
        for _ in range(3):
            try:
                found.append(written(model, ratio) == expected[ratio])
            except Exception as error:
                found.append(error)

    threads = [threading.Thread(target=answer, args=(ratio,)) for ratio in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * len(ways) * 3
    assert is_whole(model)


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("ready", [True, False], ids=["of_a_prompt", "of_the_empty_cache"])
def test_threads_on_copies_of_one_block_write_what_each_writes_alone(ready: bool) -> None:
    model, found = tiny("llama"), list[object]()
    # Prompts and turns of several lengths, so that each copy has padding and budgets of its own.
    inputs = [torch.cat((prompt(60), prompt(length, seed=length)), dim=1) for length in (3, 20, 50, 90)]
    masks = [torch.ones_like(ids) for ids in inputs]
    for mask, padded in zip(masks, (0, 8, 16, 24), strict=True):
        mask[:, : 0 if ready else padded] = 0
    options: dict[str, Any] = {"ratio": 4, "recompress": True, "compress_every": 3, **PROTECTED}
    with attach(model, "snapkv", **options) as cache:
        if ready:
            generate(model, prompt(60), 1, cache=cache)

        def answer(which: int) -> list[int]:
            tokens = generate(model, inputs[which], 8, cache=cache.copy(), attention_mask=masks[which])
            return list(tokens[0].tolist())

        alone = [answer(which) for which in range(4)]

        def answer_again(which: int) -> None:
            for _ in range(3):
                try:
                    found.append(answer(which) == alone[which])
                except Exception as error:
                    found.append(error)

        threads = [threading.Thread(target=answer_again, args=(which,)) for which in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 12
    assert is_whole(model)


def test_padding_of_one_block_is_not_that_of_another() -> None:
    model = tiny("llama")
    mask = torch.ones(1, 60, dtype=torch.long)
    mask[:, :20] = 0

    def padded(cache: Any) -> list[list[int]]:
        tokens: list[list[int]] = generate(model, prompt(60), 4, cache=cache, attention_mask=mask).tolist()
        return tokens

    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        expected = padded(cache)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as one, attach(model, "snapkv", ratio=4, **PROTECTED) as two:
        assert padded(one) == expected
        assert generate(model, prompt(60), 4, cache=two).tolist() == written(model, 4)


@pytest.mark.slow
def test_a_compiled_model_writes_what_it_writes_uncompiled_at_every_ratio() -> None:
    def answers(model: PreTrainedModel) -> list[list[list[int]]]:
        found = []
        for composition, ratio in (("snapkv", 2), ("snapkv", 4), ("snapkv:0.8+ewmeans_pre(iters=2):0.2", 4)):
            with attach(model, composition, ratio=ratio, **PROTECTED) as cache:
                found.append(generate(model, prompt(60), 4, cache=cache).tolist())
        return found

    compiled: Any = build("llama")
    compiled.compile(backend="eager")
    try:
        assert answers(compiled) == answers(tiny("llama"))
    finally:
        torch.compiler.reset()


def test_a_model_inside_another_module_is_named() -> None:
    compiled: Any = torch.compile(tiny("llama"), backend="eager")
    with (
        pytest.raises(UnsupportedError, match=r"not OptimizedModule; pass \._orig_mod of it"),
        attach(compiled, "snapkv"),
    ):
        pass
    with pytest.raises(UnsupportedError, match=r"load_cache takes .* pass \._orig_mod of it"):
        load_cache(compiled, "any.kv")
    wrapped: Any = torch.nn.ModuleDict({"inner": tiny("llama")})
    with pytest.raises(UnsupportedError, match=r"not ModuleDict; pass \.inner of it"), attach(wrapped, "snapkv"):
        pass
