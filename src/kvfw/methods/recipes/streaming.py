"""StreamingLLM (Xiao et al. 2023, arXiv 2309.17453)."""

from typing import ClassVar, Literal

from pydantic import Field

from kvfw.core.parts.part import Method


class Streaming(Method):
    """Keeps the contiguous tail of the middle: together with sinks and recent tokens, StreamingLLM's window.

    Paper: Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453.

    Deviations: the paper rotates keys by their index in the cache; here they keep their original rotation, as in the
    founding experiment. ``positions=cache`` gives the paper's relative distances: of N slots after L tokens, slot i
    is re-rotated to position L - N + i.
    """

    positions: Literal["original", "cache"] = Field("original", description="rotate keys by prompt or cache position")

    recipe: ClassVar[str] = "select(scorer=position,positions=$positions)"
