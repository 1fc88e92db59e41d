"""PrefixKV (Wang et al. 2024, arXiv 2412.03409)."""

from typing import ClassVar

from kvfw.core.parts.part import Method


class PrefixKV(Method):
    """Tokens of most attention over the whole prompt, with the same retained mass in every layer.

    Plain column sums of attention (``h2o(norm=none)``) under the allocator ``equalmass``.

    Paper: Wang et al. 2024, PrefixKV: Adaptive Prefix KV Cache is What Vision Instruction-Following Models Need for
    Efficient Generation, arXiv 2412.03409.

    Deviations: those of ``h2o`` and ``equalmass``. The paper's heads keep the same tokens, by their mean; here each
    head keeps its own.
    """

    recipe: ClassVar[str] = "h2o(norm=none)@equalmass"
