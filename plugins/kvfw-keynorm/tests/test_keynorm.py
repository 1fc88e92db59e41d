"""The scorer ranks keys by their norm, its scores can weight a merge, and its entry module announces it."""

import torch
from kvfw_keynorm import kvfw_parts
from kvfw_keynorm.scorer import KeyNorm
from torch import Tensor

from kvfw import Observation, exact_state, protect


def observed(norms: Tensor) -> Observation:
    keys = torch.nn.functional.pad(norms[None, None, :, None], (0, 3))
    positions = torch.arange(float(len(norms)))[None]
    state = exact_state(keys, keys, positions, torch.ones(1, len(norms), dtype=torch.bool))
    return Observation(state=state, protected=protect(state.valid, 0, 0), scale=0.5, layer=0)


def test_the_score_is_one_over_the_norm() -> None:
    assert KeyNorm().score(observed(torch.tensor([4.0, 0.5, 2.0])))[0, 0].tolist() == [0.25, 2.0, 0.5]


def test_the_order_is_that_of_the_negative_norm() -> None:
    norms = torch.rand(500, generator=torch.Generator().manual_seed(1)) * 30
    scores = KeyNorm().score(observed(norms))[0, 0]
    assert torch.equal(scores.argsort(descending=True, stable=True), (-norms).argsort(descending=True, stable=True))


def test_scores_can_weight_a_merge_also_of_a_key_without_length() -> None:
    scores = KeyNorm().score(observed(torch.tensor([0.0, 1.0, 1e4])))
    assert bool((scores.isfinite() & (scores > 0)).all())


def test_the_entry_module_announces_the_scorer() -> None:
    (spec,) = kvfw_parts()
    assert (spec.kind, spec.name) == ("scorer", "key_norm")
    assert spec.load() is KeyNorm
