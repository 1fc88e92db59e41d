"""Expected Attention as its leaderboard runs it (arXiv 2510.00636)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class ExpectedAdaKV(Method):
    """Expected Attention under one ranking per layer, as on its authors' leaderboard.

    The scorer ``expected(epsilon=0.01)`` under the allocator ``adakv``.

    Paper: Devoto, Jeblick, Jegou 2025, Expected Attention: KV Cache Compression by Estimating Attention from Future
    Queries Distribution, arXiv 2510.00636.

    Deviations: those of ``expected`` and ``adakv``.
    """

    epsilon: float = Field(0.01, ge=0, description="added to the expected attention before values weigh it")
    floor: float = Field(0.2, ge=0, le=1, description="part of an equal share that every head gets")

    recipe: ClassVar[str] = "expected(epsilon=$epsilon)@adakv(floor=$floor)"
