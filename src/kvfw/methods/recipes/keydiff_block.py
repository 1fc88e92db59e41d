"""KeyDiff as its paper runs it, block by block (Park et al. 2025, arXiv 2504.15364)."""

from typing import ClassVar

from pydantic import Field

from kvfw.core.parts.part import Method


class KeyDiffBlock(Method):
    """KeyDiff over a running set: after every block the keys least like the mean direction of those still held stay.

    See the scorer ``keydiff`` and the selector ``blockwise``.

    Paper: Park et al. 2025, KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
    Resource-Constrained Environments, arXiv 2504.15364.

    Deviations: those of ``blockwise``: the prompt's attention is full, so memory falls only after the prompt.
    """

    size: int = Field(128, ge=1, description="tokens per block")

    recipe: ClassVar[str] = "select(scorer=keydiff,selector=blockwise(scorer=keydiff,size=$size))"
