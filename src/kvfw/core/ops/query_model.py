"""What the prompt's queries, observed before RoPE, say about queries at other positions."""

import torch
from jaxtyping import Float32
from torch import Tensor

from kvfw.core.ops.least_squares import precise
from kvfw.core.state.moments import Moments
from kvfw.core.state.observation import Observation
from kvfw.core.state.rope import rotate, rotate_mean

#: Positions that stand for all those of the prompt.
PLACES = 32


def turned_ahead(x: Float32[Tensor, "B H N D"], obs: Observation, positions: int) -> Float32[Tensor, "B H N D"]:
    """Vectors turned by the mean rotation over the ``positions`` positions after the prompt."""
    if obs.rope is None:
        return x
    steps = torch.arange(1, positions + 1, device=x.device)
    return rotate_mean(x, obs.state.positions.amax((1, 2))[:, None] + steps, obs.rope)


def main_directions(moments: Moments, obs: Observation) -> Float32[Tensor, "B H D"]:
    """First right singular vector of the rotated queries of every query head, turned to the side of their mean.

    The top eigenvector of ``mean over p of R(p) E[q q^T] R(p)^T``, over evenly spaced positions p of the prompt:
    queries are taken to be distributed alike at all positions before RoPE.
    """
    mean = moments.mean[:, :, None]
    second = moments.covariance + mean.mT @ mean
    if obs.rope is not None:
        last = obs.state.positions.amax((1, 2)).clamp(min=0)
        places = last[:, None] * torch.linspace(0, 1, PLACES, device=last.device)
        mean, before, second = rotate_mean(mean, places, obs.rope), second, torch.zeros_like(second)
        for at in places.unbind(1):
            turned = at[:, None, None].expand(-1, 1, second.shape[-1])
            second = second + rotate(rotate(before, turned, obs.rope).mT, turned, obs.rope) / PLACES
    vectors: Tensor = torch.linalg.eigh(precise(second)).eigenvectors
    top = vectors[..., -1].to(mean)
    return torch.where((top * mean[:, :, 0]).sum(-1, keepdim=True) < 0, -top, top)
