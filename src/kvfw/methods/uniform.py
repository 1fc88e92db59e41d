"""Evenly spaced tokens, the naive baseline."""

from typing import ClassVar

from kvfw.core.options import Method


class Uniform(Method):
    """Keeps K of the middle's M tokens, evenly spaced: ranks ``floor(j (M - 1) / (K - 1))``.

    Called "naive drop" in the founding experiment. It looks at nothing but positions.
    """

    recipe: ClassVar[str] = "select(scorer=position,selector=evenly)"
