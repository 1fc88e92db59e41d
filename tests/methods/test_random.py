"""random: uniform scores that depend on seed, layer, head and position alone."""

from dataclasses import replace

import torch

from helpers.observations import observe, random_row
from kvfw.core.parts.part import is_comparable
from kvfw.methods.scorers.random import Random


def test_scores_are_uniform_and_differ_between_heads_layers_and_seeds() -> None:
    obs = observe([random_row(400, 1)])
    scores = Random().score(obs)
    assert bool(((scores >= 0) & (scores < 1)).all())
    counts = torch.histc(scores, 4, 0, 1)
    assert bool((counts > 800 / 4 * 0.8).all())
    assert not torch.equal(scores[:, 0], scores[:, 1])
    assert not torch.equal(scores, Random().score(replace(obs, layer=1)))
    assert not torch.equal(scores, Random(seed=1).score(obs))


def test_a_token_has_the_same_score_in_any_batch_and_before_any_continuation() -> None:
    short, long = random_row(15, 1), random_row(40, 2)
    both = Random().score(observe([short, long]))
    assert torch.equal(both[0, :, -15:], Random().score(observe([short]))[0])
    assert torch.equal(both[0, :, -15:], both[1, :, :15])


def test_the_global_random_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    Random().score(observe([random_row(9, 1)]))
    assert torch.equal(before, torch.random.get_rng_state())
    assert is_comparable(Random())
