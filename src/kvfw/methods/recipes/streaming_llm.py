"""StreamingLLM as published (Xiao et al. 2023, arXiv 2309.17453)."""

from typing import ClassVar

from kvfw.core.parts.part import Method


class StreamingLLM(Method):
    """Sinks and the last tokens, rotated as if nothing lay between them.

    ``streaming(positions=cache)``; sinks are the compressor's, 4 by default as in the paper.

    Paper: Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453.

    Deviations: see ``streaming``.
    """

    recipe: ClassVar[str] = "streaming(positions=cache)"
