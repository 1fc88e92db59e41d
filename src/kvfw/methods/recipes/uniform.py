"""Evenly spaced tokens, the naive baseline."""

from typing import ClassVar

from kvfw.core.parts.part import Method


class Uniform(Method):
    """Keeps K of the middle's M tokens, evenly spaced: ranks ``floor(j (M - 1) / (K - 1))``.

    For K = 1 the middle one, ``floor((M - 1) / 2)``. It uses only positions.

    Source: the founding experiment, where it is called "naive drop".
    """

    recipe: ClassVar[str] = "select(scorer=position,selector=evenly)"
