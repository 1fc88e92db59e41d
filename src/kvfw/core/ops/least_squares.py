"""Small least-squares problems, from their normal equations."""

import torch
from jaxtyping import Float
from torch import Tensor


def precise(tensor: Tensor) -> Float[Tensor, "..."]:
    """The tensor in float64, on the CPU where its own device has no float64 (MPS)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)


def damped(gram: Float[Tensor, "t t"], ridge: float) -> Float[Tensor, "t t"]:
    """``X^T X`` plus ``ridge ||X||_2^2`` on its diagonal, plus what rounding needs to keep it positive definite.

    Args:
        gram: ``X^T X`` in float64, of an X without negative entries.
        ridge: relative to the largest eigenvalue, which power iteration finds: the start of all ones cannot miss it.
    """
    direction = torch.ones_like(gram[0])
    for _ in range(8):
        direction = gram @ direction
        direction = direction / direction.norm().clamp(min=torch.finfo(gram.dtype).tiny)
    largest = direction @ gram @ direction
    least = len(gram) * torch.finfo(torch.float32).eps * 1e-3
    return gram + torch.diag_embed((max(ridge, least) * largest).clamp(min=1e-300).expand(len(gram)))


def solved(gram: Float[Tensor, "t t"], right: Float[Tensor, "t ..."]) -> Float[Tensor, "t ..."]:
    """``gram^-1 right`` for a symmetric positive definite matrix, by Cholesky."""
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
