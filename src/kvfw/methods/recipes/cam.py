"""CaM (Zhang et al. 2024), in expectation."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class CaMMethod(Method):
    """Tokens of most average attention, with parts of dropped values added to the next ones.

    The merger ``cam`` over attention per exposure.

    Paper: Zhang et al. 2024, CaM: Cache Merging for Memory-efficient LLMs Inference, ICML 2024.

    Deviations: those of the merger. It was made for one dropped token at a step of decoding: compressing a whole prompt
    at once adds many values to every kept one, and does harm.
    """

    spread: int = Field(32, ge=1, description="kept tokens that share a dropped value")

    recipe: ClassVar[str] = "merge(merger=cam(spread=$spread),weight=h2o)"
