"""Layers as an allocator sees them: scores written by hand, or attention of random prompts."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from helpers.observations import PromptRow, observe
from kvfw.core.contracts.parts import LayerView, Scorer
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.state import exact_state

#: Scores of the heads of one row, token by token.
Heads = Sequence[Sequence[float]]
#: What padding and protected tokens have for a score: a part that reads it gives wrong results.
HUGE = 50.0


class FirstCoordinate(Part):
    """The score of a token is the first coordinate of its key."""

    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation) -> Tensor:
        return obs.state.keys[..., 0].float()


RANKING: Scorer = FirstCoordinate()


def scored_layer(index: int, rows: Sequence[Heads], protected: int = 1) -> LayerView:
    """A layer whose tokens have these scores, after some protected tokens, as a left-padded batch."""
    widths = [len(row[0]) + protected for row in rows]
    width, heads = max(widths), len(rows[0])
    real = torch.stack([torch.arange(width) >= width - each for each in widths])
    keys = torch.full((len(rows), heads, width, 1), HUGE)
    for i, row in enumerate(rows):
        for head, scores in enumerate(row):
            if len(scores):
                keys[i, head, -len(scores) :, 0] = torch.tensor(list(scores), dtype=torch.float32)
    state = exact_state(keys, keys, (real.cumsum(-1) - 1).to(torch.float32), real)
    order = state.valid.to(torch.int64).cumsum(-1)
    shielded = ~state.valid | (order <= protected)
    obs = Observation(state=state, protected=shielded, scale=1.0, layer=index)
    return LayerView(index, heads, obs.middle.sum(-1).amax(-1), obs, RANKING)


def window_layer(index: int, rows: Sequence[PromptRow], window: int, *, sinks: int = 2, recent: int = 3) -> LayerView:
    """A layer that shows its last queries, as a left-padded batch."""
    obs = replace(observe(rows, window=window, sinks=sinks, recent=recent), layer=index)
    obs = obs.narrowed(Needs(queries=window))
    return LayerView(index, obs.state.keys.shape[1], obs.middle.sum(-1).amax(-1), obs)


def shape_layers(heads: Sequence[int], middles: Sequence[int]) -> list[LayerView]:
    """Layers that show nothing but their shapes; ``middles`` are the rows'."""
    return [LayerView(i, count, torch.tensor(list(middles))) for i, count in enumerate(heads)]
