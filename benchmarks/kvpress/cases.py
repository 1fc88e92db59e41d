"""What is compared. Imported by both sides, so it needs nothing but Python."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Press:
    """A class of kvpress and its options, apart from the compression ratio.

    Args:
        name: of the class.
        options: its keyword arguments.
        inner: the press that it wraps; it is given the compression ratio.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    inner: "Press | None" = None


@dataclass(frozen=True)
class Case:
    """One method, said in the words of both sides so that they keep the same tokens.

    Args:
        compose: kvfw's composition.
        sinks, recent: tokens at both ends that kvfw always keeps; they count as slots.
        press: of kvpress.
        attention: the attention implementation that the press needs.
        why: why the two do not keep the same tokens, where they do not.
    """

    compose: str
    sinks: int
    recent: int
    press: Press
    attention: str = "sdpa"
    why: str = ""


#: kvfw set up to do what the press does with its own defaults. A press protects nothing but what its scores protect.
MATCHED: dict[str, Case] = {
    "snapkv": Case("snapkv(window=64,kernel=5)", 0, 64, Press("SnapKVPress", {"window_size": 64, "kernel_size": 5})),
    "streaming": Case("streaming", 4, 0, Press("StreamingLLMPress", {"n_sink": 4})),
    "key_norm": Case("key_norm", 0, 0, Press("KnormPress")),
    "h2o": Case("h2o", 0, 0, Press("ObservedAttentionPress"), attention="eager"),
}

#: The same methods as kvfw ships them, with its own sinks and recent tokens. The presses are the same as above.
SHIPPED: dict[str, Case] = {
    f"{name} (kvfw's defaults)": Case(compose, 4, 84, case.press, case.attention)
    for (name, case), compose in zip(MATCHED.items(), ("snapkv", "streaming", "key_norm", "h2o"), strict=True)
}

_SNAPKV = Press("SnapKVPress", {"window_size": 64, "kernel_size": 5})
_SNAPKV_HERE = "snapkv(window=64,kernel=5)"

#: Every other method that both have; only kept tokens, time and bytes are compared.
LIBRARY: dict[str, Case] = {
    "knorm": Case("knorm", 0, 0, Press("KnormPress"), why="equal norms in the first layer; see Ties"),
    "keydiff": Case("keydiff", 0, 0, Press("KeyDiffPress")),
    "tova": Case("tova", 0, 1, Press("TOVAPress")),
    "expected": Case("expected", 4, 0, Press("ExpectedAttentionPress")),
    "criticalkv": Case(f"criticalkv(scorer={_SNAPKV_HERE},norm=l1)", 0, 64, Press("CriticalKVPress", inner=_SNAPKV)),
    "pyramidkv": Case(
        f"{_SNAPKV_HERE}@pyramid", 0, 64, Press("PyramidKVPress", {"window_size": 64, "kernel_size": 5, "beta": 20})
    ),
    "adakv": Case(f"{_SNAPKV_HERE}@adakv", 0, 64, Press("AdaKVPress", inner=_SNAPKV)),
    "criticaladakv": Case(
        f"criticalkv(scorer={_SNAPKV_HERE},norm=l1)@adakv", 0, 64, Press("CriticalAdaKVPress", inner=_SNAPKV)
    ),
    "kvzip": Case("kvzip@global", 4, 0, Press("KVzipPress")),
    "kvzip, layer by layer": Case("kvzip@adakv(floor=0)", 4, 0, Press("KVzipPress", {"layerwise": True})),
    "kvzip plus": Case("kvzip(plus=true)@global", 4, 0, Press("KVzipPress", {"kvzip_plus_normalization": True})),
}

ALL: dict[str, Case] = {**MATCHED, **SHIPPED, **LIBRARY}

#: Prefills without any compression, and their attention.
PLAIN: dict[str, str] = {"plain sdpa": "sdpa", "plain eager": "eager"}

#: Protected tokens of a whole evaluation: one setting for all its rows. The window of SnapKV is among the recent ones.
WHOLE_SINKS, WHOLE_RECENT = 4, 64


def removed_fraction(tokens: int, slots: int) -> float:
    """The ``compression_ratio`` with which a press keeps exactly ``slots`` of ``tokens``.

    A press keeps ``int(tokens * (1 - ratio))``. Aiming half a token higher keeps rounding from losing one.
    """
    return 1 - (slots + 0.5) / tokens
