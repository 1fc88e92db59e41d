"""MergingPress, a method of NVIDIA's kvpress."""

from typing import ClassVar

from kvfw.core.parts.part import Method


class MergingPress(Method):
    """SnapKV, with dropped values folded into the kept tokens of most similar key.

    The merger ``nearest`` over the scores of ``snapkv_kvpress``.

    Source: MergingPress of NVIDIA's kvpress (2026), which has no paper.

    Deviations: those of the merger. There any scorer can be wrapped; here write
    ``merge(merger=nearest,weight=SCORER)``.
    """

    recipe: ClassVar[str] = "merge(merger=nearest,weight=snapkv(window=64,kernel=5))"
