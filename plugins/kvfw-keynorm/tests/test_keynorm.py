"""The scorer ranks keys by their norm, and its entry module announces it."""

import torch
from kvfw_keynorm import kvfw_parts
from kvfw_keynorm.scorer import KeyNorm

from kvfw import Observation
from kvfw.core.observation import protect
from kvfw.core.state import exact_state


def test_small_keys_score_high() -> None:
    keys = torch.tensor([3.0, 1.0, 2.0]).view(1, 1, 3, 1).expand(1, 1, 3, 4)
    real = torch.ones(1, 3, dtype=torch.bool)
    state = exact_state(keys, keys, torch.arange(3.0)[None], real)
    obs = Observation(state=state, protected=protect(state.valid, 0, 0), scale=0.5, layer=0)
    assert KeyNorm().score(obs)[0, 0].argsort(descending=True).tolist() == [1, 2, 0]


def test_the_entry_module_announces_the_scorer() -> None:
    (spec,) = kvfw_parts()
    assert (spec.kind, spec.name) == ("scorer", "key_norm")
    assert spec.load() is KeyNorm
