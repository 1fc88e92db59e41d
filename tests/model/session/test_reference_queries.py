"""Which queries are taken as reference queries."""

from itertools import pairwise

import pytest
import torch

from kvfw.core.state.observation import References
from kvfw.model.session.capture import picked


def taken(real: list[int], count: int, chunk: int) -> list[list[int]]:
    """Ranks taken of rows of so many real tokens, left-padded, fed ``chunk`` at a time."""
    width, tokens = max(real), torch.tensor(real)
    positions = torch.arange(width) - (width - tokens[:, None]).float()
    positions = positions.masked_fill(positions < 0, -1.0)
    found: list[list[int]] = [[] for _ in real]
    for part in torch.split(positions, chunk, dim=1):
        queries = part[:, None, :, None].expand(-1, 2, -1, 3)
        chosen, at = picked(queries, part, References(count), part.long(), tokens)
        for row, own, those in zip(found, at, chosen, strict=True):
            assert torch.equal(those[0, own >= 0, 0], own[own >= 0])
            row += [int(p) for p in own.tolist() if p >= 0]
    return found


@pytest.mark.parametrize("chunk", [7, 100])
@pytest.mark.parametrize(("tokens", "count"), [(40, 40), (40, 39), (40, 21), (40, 3), (40, 100), (1, 5)])
def test_as_many_are_taken_as_asked_or_all(tokens: int, count: int, chunk: int) -> None:
    (found,) = taken([tokens], count, chunk)
    assert len(found) == min(tokens, count)
    assert found[-1] == tokens - 1
    gaps = {b - a for a, b in pairwise(found)}
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("chunk", [7, 100])
def test_padding_does_not_change_which_are_taken(chunk: int) -> None:
    rows = [40, 23, 5]
    assert taken(rows, 10, chunk) == [taken([row], 10, 100)[0] for row in rows]
