"""DuoAttention with heads measured on the prompt (arXiv 2410.10819)."""

from typing import ClassVar

from kvfw.core.parts.part import Method


class DuoAttention(Method):
    """Everything in heads that look far, sinks and recent tokens in the others.

    The allocator ``duo`` over ``streaming``.

    Paper: Xiao et al. 2024, DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads,
    arXiv 2410.10819.

    Deviations: those of ``duo``. For a pattern learned elsewhere write ``streaming@table(file=FILE)``.
    """

    recipe: ClassVar[str] = "streaming@duo"
