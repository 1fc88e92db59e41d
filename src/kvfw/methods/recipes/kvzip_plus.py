"""KVzip+ (kvpress), one threshold over all layers and heads."""

from typing import ClassVar

from kvfw.core.parts.part import Method


class KVzipPlus(Method):
    """KVzip whose scores count a value's effect on the output, ranked over all layers and heads.

    ``kvzip(plus=true)@global``.

    Paper: Kim et al. 2025, KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction, arXiv
    2505.23416; the normalised form is that of NVIDIA's kvpress, described in Jegou, Jeblick 2026, KVzap, arXiv
    2601.07891.

    Deviations: those of ``kvzip`` and ``global``.
    """

    recipe: ClassVar[str] = "kvzip(plus=true)@global"
