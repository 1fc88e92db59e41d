"""Small least-squares problems, from their normal equations."""

from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

#: With at least this ridge float32 has digits enough: the condition number of what is solved is at most 1 / ridge.
SAFE_RIDGE: Final = 1e-3


def precise(tensor: Tensor, ridge: float = 0.0) -> Float[Tensor, "..."]:
    """The tensor as :func:`damped` and the solvers take it for this ridge: in float32 where that is enough.

    Otherwise in float64, on the CPU where its own device has no float64 (MPS).
    """
    if ridge >= SAFE_RIDGE:
        return tensor.to(torch.float32)
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)


def damped(gram: Float[Tensor, "t t"], ridge: float) -> Float[Tensor, "t t"]:
    """``X^T X`` plus ``ridge ||X||_2^2`` on its diagonal, plus what rounding needs to keep it positive definite.

    Args:
        gram: ``X^T X``, as precise as :func:`precise` says, of an X without negative entries.
        ridge: relative to the largest eigenvalue, which power iteration finds: the start of all ones cannot miss it.
    """
    direction = torch.ones_like(gram[0])
    for _ in range(8):
        direction = gram @ direction
        direction = direction / direction.norm().clamp(min=torch.finfo(gram.dtype).tiny)
    largest = direction @ gram @ direction
    least = len(gram) * torch.finfo(torch.float32).eps * 1e-3
    added = (max(ridge, least) * largest).clamp(min=torch.finfo(gram.dtype).tiny)
    return gram + torch.diag_embed(added.expand(len(gram)))


def solved(gram: Float[Tensor, "t t"], right: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """``gram^-1 right`` for a symmetric positive definite matrix, by Cholesky; ``right`` is ``[t]`` or ``[t, k]``."""
    columns = right if right.ndim == 2 else right[:, None]
    return torch.cholesky_solve(columns, torch.linalg.cholesky(gram)).view_as(right)


def solved_within(
    gram: Float[Tensor, "t t"], right: Float[Tensor, " t"], low: float, high: float, steps: int = 20
) -> Float[Tensor, " t"]:
    """``argmin 1/2 x^T G x - r^T x`` over ``low <= x <= high``, by an active set.

    Bounds that hold are those at which the gradient points outwards; the rest is solved exactly, moves towards its
    solution as far as lowers the objective, and is clipped (projected Newton: Bertsekas 1982). It stops when nothing
    changes, or after ``steps``.
    """

    def objective(x: Tensor) -> Tensor:
        return x @ (0.5 * (gram @ x) - right)

    x = solved(gram, right).clamp(low, high)
    best = objective(x)
    for _ in range(steps):
        slope = gram @ x - right
        free = ~(((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0)))
        if not bool(free.any()):
            break
        move = torch.zeros_like(x)
        move[free] = -solved(gram[free][:, free], slope[free])
        for halvings in range(8):
            tried = (x + move * 0.5**halvings).clamp(low, high)
            if (value := objective(tried)) < best:
                break
        else:
            break
        gained, x, best = best - value, tried, value
        if gained <= 1e-9 * best.abs():
            break
    return x
