"""What is compared. Imported by both sides, so it needs nothing but Python."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """One method, said in the words of both sides so that they keep the same tokens.

    Args:
        compose: kvfw's composition.
        sinks, recent: tokens at both ends that kvfw always keeps; they count as slots.
        press: class of kvpress.
        options: its options, apart from the compression ratio.
        attention: the attention implementation that the press needs.
    """

    compose: str
    sinks: int
    recent: int
    press: str
    options: dict[str, int] = field(default_factory=dict)
    attention: str = "sdpa"


#: kvfw set up to do what the press does with its own defaults. A press protects nothing but what its scores protect.
MATCHED: dict[str, Case] = {
    "snapkv": Case("snapkv(window=64,kernel=5)", 0, 64, "SnapKVPress", {"window_size": 64, "kernel_size": 5}),
    "streaming": Case("streaming", 4, 0, "StreamingLLMPress", {"n_sink": 4}),
    "key_norm": Case("key_norm", 0, 0, "KnormPress"),
    "h2o": Case("h2o", 0, 0, "ObservedAttentionPress", attention="eager"),
}

#: The same methods as kvfw ships them, with its own sinks and recent tokens. The presses are the same as above.
SHIPPED: dict[str, Case] = {
    f"{name} (kvfw's defaults)": Case(compose, 4, 84, case.press, case.options, case.attention)
    for (name, case), compose in zip(MATCHED.items(), ("snapkv", "streaming", "key_norm", "h2o"), strict=True)
}

ALL: dict[str, Case] = {**MATCHED, **SHIPPED}

#: Prefills without any compression, and their attention.
PLAIN: dict[str, str] = {"plain sdpa": "sdpa", "plain eager": "eager"}

#: Protected tokens of a whole evaluation: one setting for all its rows. The window of SnapKV is among the recent ones.
WHOLE_SINKS, WHOLE_RECENT = 4, 64


def removed_fraction(tokens: int, slots: int) -> float:
    """The ``compression_ratio`` with which a press keeps exactly ``slots`` of ``tokens``.

    A press keeps ``int(tokens * (1 - ratio))``. Aiming half a token higher keeps rounding from losing one.
    """
    return 1 - (slots + 0.5) / tokens
