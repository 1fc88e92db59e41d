"""chunks, pages and blockwise: values computed by hand, and slow references in loops."""

import math
import statistics

import pytest
import torch
from torch import Tensor

from helpers.observations import observe, random_row
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.contracts.parts import Selector
from kvfw.core.state.observation import Observation
from kvfw.errors import SpecError
from kvfw.methods.scorers.keydiff import KeyDiff
from kvfw.methods.scorers.knorm import KNorm
from kvfw.methods.selectors.blockwise import Blockwise
from kvfw.methods.selectors.chunks import ChunksSelector
from kvfw.methods.selectors.pages import Pages

SINKS, RECENT, LENGTHS = 2, 3, (45, 38)


@pytest.fixture(scope="module")
def obs() -> Observation:
    """Two left-padded rows of two heads."""
    rows = [random_row(length, seed) for seed, length in enumerate(LENGTHS)]
    return observe(rows, sinks=SINKS, recent=RECENT)


def chosen(part: Selector, scores: list[list[float]], budget: list[int]) -> list[list[int]]:
    """The slots that the heads of one row without protected tokens keep."""
    seen = observe([random_row(len(scores[0]), 1)], sinks=0, recent=0)
    mask = part.select(torch.tensor([scores]), torch.tensor([budget]), seen.middle, seen)
    return [head.nonzero().flatten().tolist() for head in mask[0]]


def random_scores(obs: Observation) -> Tensor:
    """Positive, and NaN where nothing may look."""
    drawn = torch.rand(obs.middle.shape, generator=torch.Generator().manual_seed(3)) ** 4
    return drawn.masked_fill(~obs.middle, torch.nan)


def slow_chunks(scores: list[float], budget: int, size: int, spiky: int | None) -> list[int]:
    """The greedy choice of one row, from its tokens' mean scores."""
    chunks = [list(range(a, min(a + size, len(scores)))) for a in range(0, len(scores), size)]
    means = [statistics.fmean(scores[j] for j in chunk) for chunk in chunks]

    def entropy(chunk: list[int]) -> float:
        total = sum(scores[j] for j in chunk)
        shares = [scores[j] / total for j in chunk]
        return -sum(p * math.log(p) for p in shares) / math.log(len(chunk)) if len(chunk) > 1 else 0.0

    entropies = [entropy(chunk) for chunk in chunks]
    kept: list[int] = []
    for c in sorted(range(len(chunks)), key=lambda c: -means[c]):
        n = len(chunks[c])
        low = statistics.median_low
        if spiky is not None and means[c] >= low(means) and entropies[c] < low(entropies):
            n = min(n, spiky)
        kept += sorted(chunks[c], key=lambda j: -scores[j])[: min(n, budget - len(kept))]
    rest = sorted(set(range(len(scores))) - set(kept), key=lambda j: -scores[j])
    return sorted(kept + rest[: budget - len(kept)])


def test_chunks_by_hand() -> None:
    """Means over heads 2 2 | 0 3 | 1 4 (means of the chunks 2, 1.5, 2.5)."""
    scores = [[1.0, 4, 0, 6, 2, 4], [3.0, 0, 0, 0, 0, 4]]
    assert chosen(ChunksSelector(size=2), scores, [4, 4]) == [[0, 1, 4, 5]] * 2
    assert chosen(ChunksSelector(size=2), scores, [3, 5]) == [[0, 4, 5], [0, 1, 3, 4, 5]]


def test_a_spiky_chunk_gives_its_best_tokens_by_hand() -> None:
    """Chunks 9 0 (entropy 0), 3 3 (1), 1 1 (1): the first is above the median score and spiky."""
    scores = [[9.0, 0, 3, 3, 1, 1]] * 2
    part = ChunksSelector(size=2, gate="entropy", spiky=1)
    assert chosen(part, scores, [4, 5]) == [[0, 2, 3, 4], [0, 2, 3, 4, 5]]
    assert chosen(ChunksSelector(size=2), scores, [4, 4]) == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("budget", [1, 7, 19, 31])
@pytest.mark.parametrize("spiky", [None, 3])
def test_chunks_are_the_greedy_choice(obs: Observation, budget: int, spiky: int | None) -> None:
    part = ChunksSelector(size=7) if spiky is None else ChunksSelector(size=7, gate="entropy", spiky=spiky)
    scores = random_scores(obs)
    kept = part.select(scores, torch.full((2, 2), budget), obs.middle, obs)
    for row, length in enumerate(LENGTHS):
        middle = slice(LENGTHS[0] - length + SINKS, LENGTHS[0] - RECENT)
        means = scores[row, :, middle].double().mean(0).tolist()
        for head in range(2):
            assert kept[row, head, middle].nonzero().flatten().tolist() == slow_chunks(means, budget, 7, spiky)


def test_infinite_scores_leave_no_nan() -> None:
    for gate in ("none", "entropy"):
        part = ChunksSelector.model_validate({"size": 2, "gate": gate})
        kept = chosen(part, [[1.0, torch.inf, 0, -torch.inf, 5, 1]] * 2, [2, 2])
        assert kept[0] == [0, 1]


@pytest.mark.parametrize(("score", "expected"), [("mean", [2, 3, 4, 5, 6]), ("max", [2, 8, 9, 10, 11])])
def test_pages_count_from_the_first_token_and_the_next_page_fills_the_rest(score: str, expected: list[int]) -> None:
    """Pages 0-3, 4-7 and 8-11, the first two tokens protected: means 6, 4, 3.25 and maxima 7, 4, 9."""
    seen = observe([random_row(12, 1)], sinks=2, recent=0)
    scores = torch.tensor([0.0, 0, 7, 5, 4, 4, 4, 4, 9, 1, 1, 2]).expand(1, 2, 12)
    part = Pages.model_validate({"size": 4, "score": score})
    mask = part.select(scores, torch.tensor([[5, 9]]), seen.middle, seen)
    assert mask[0, 0].nonzero().flatten().tolist() == expected
    assert int(mask[0, 1].sum()) == 9


def test_pages_are_the_same_in_all_heads_and_whole(obs: Observation) -> None:
    kept = Pages(size=8).select(random_scores(obs), torch.full((2, 2), 16), obs.middle, obs)
    assert torch.equal(kept[:, 0], kept[:, 1])
    for row, length in enumerate(LENGTHS):
        first = LENGTHS[0] - length
        free = torch.split(obs.middle[row, 0, first:], 8)
        partial = [
            0 < int((page & f).sum()) < int(f.sum())
            for page, f in zip(torch.split(kept[row, 0, first:], 8), free, strict=True)
        ]
        assert sum(partial) <= 1


@pytest.mark.parametrize("size", [1, 6, 100])
def test_blockwise_keydiff_keeps_the_running_best(obs: Observation, size: int) -> None:
    budget = torch.tensor([[6, 9], [11, 1]])
    kept = Blockwise(scorer=KeyDiff(), size=size).select(random_scores(obs), budget, obs.middle, obs)
    for row in range(2):
        for head in range(2):
            free = obs.middle[row, head].nonzero().flatten().tolist()
            slots, keys = int(budget[row, head]), obs.state.keys[row, head].double()
            real = obs.state.valid[row, head].nonzero().flatten().tolist()
            running = free[:slots]
            for start in range(slots, len(free), size):
                held = running + free[start : start + size]
                read = held + [j for j in real if j not in free and j < held[-1]]
                anchor = sum(keys[j] / keys[j].norm() for j in read) / len(read)
                cosines = {j: float(keys[j] @ anchor / keys[j].norm()) for j in held}
                running = sorted(sorted(held, key=lambda j: cosines[j])[:slots])
            assert kept[row, head].nonzero().flatten().tolist() == running


def test_blockwise_with_scores_that_do_not_look_at_others_is_topk(obs: Observation) -> None:
    states = [
        compressor(parse(text), amount(ratio=3), sinks=SINKS, recent=RECENT).compress(obs, torch.full((2, 2), 9))
        for text in ("knorm", "select(scorer=knorm,selector=blockwise(scorer=knorm,size=5))")
    ]
    assert torch.equal(states[0].positions, states[1].positions)
    assert KNorm().needs == Blockwise(scorer=KNorm()).needs


def test_wrong_options_are_refused() -> None:
    for text in ("chunkkv(size=0)", "chunkkv_entropy(spiky=0)", "keydiff_block(size=0)", "chunkkv(scorer=topk)"):
        with pytest.raises(SpecError):
            parse(text)
