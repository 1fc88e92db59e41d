"""Scores of one observation, computed once and checked."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from kvfw.core.contracts.blame import blamed, needs_of
from kvfw.core.contracts.parts import Scorer
from kvfw.core.state.observation import Needs, Observation
from kvfw.errors import RunError


class Scores:
    """Lazy cache of one observation's scores: each scorer runs once, when its scores are first needed.

    A scorer sees only what it declared in its own needs, so its scores do not depend on which part asks first.
    """

    def __init__(self, obs: Observation) -> None:
        self.obs = obs
        self._known: dict[Scorer, Float[Tensor, "B Hkv N"]] = {}
        self._finite = False

    def check_finite(self) -> None:
        """Runs :func:`check_finite` on this observation, once."""
        if not self._finite:
            check_finite(self.obs)
            self._finite = True

    def of(self, scorer: Scorer) -> Float[Tensor, "B Hkv N"]:
        """The scorer's scores, checked by :func:`checked_scores`."""
        if scorer not in self._known:
            self._known[scorer] = checked_scores(scorer, replace(self.obs, score_of=self.of))
        # A copy, so that a selector that changes its scores in place cannot affect another composition.
        return self._known[scorer].clone()

    def shown(self, needs: Needs) -> Observation:
        """The observation as a stage with these needs sees it; it takes scores from this cache."""
        return replace(self.obs, score_of=self.of).narrowed(needs)


def check_finite(obs: Observation) -> None:
    """Rejects keys and values that are NaN or infinite: compressed, they would still look like a result.

    Raises:
        RunError: a key or a value of a real token is NaN or infinite.
    """
    for name, part in (("keys", obs.state.keys), ("values", obs.state.values)):
        # One pass without a copy: NaN and infinity survive addition. Only a suspicious sum is examined.
        if bool(part.sum(dtype=torch.float32).isfinite()):
            continue
        if bool((~part.isfinite().all(-1) & obs.state.valid).any()):
            raise RunError(
                f"layer {obs.layer} has {name} that are NaN or infinite, so there is nothing to compress. Check the "
                "model's weights; if it runs in float16, use bfloat16 or float32, which do not overflow"
            )


def checked_scores(scorer: Scorer, obs: Observation) -> Float[Tensor, "B Hkv N"]:
    """The scorer's scores, computed only from what it declared in its needs.

    Raises:
        RunError: wrong type or shape, or NaN for a token it has to rank.
    """
    name = type(scorer).__name__
    with blamed(f"scorer {name} in layer {obs.layer}"):
        scores = scorer.score(obs.narrowed(needs_of(scorer)))
    if not isinstance(scores, torch.Tensor):
        raise RunError(f"scorer {name} returned {type(scores).__name__} where a tensor of scores is expected")
    if scores.shape != obs.state.mass.shape:
        raise RunError(
            f"scorer {name} returned shape {tuple(scores.shape)}; one score per row, KV head and slot is expected: "
            f"{tuple(obs.state.mass.shape)}"
        )
    if bool((scores.isnan() & obs.middle).any()):
        raise RunError(f"scorer {name} gave NaN in layer {obs.layer}; are the model's keys finite?")
    return scores
