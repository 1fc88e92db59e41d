"""Selectors: which slots to keep, from scores and a budget."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (
    PartSpec(Kind.SELECTOR, "topk", f"{__name__}.topk:TopK", "the highest scores, ties to the lowest position"),
    PartSpec(Kind.SELECTOR, "evenly", f"{__name__}.evenly:Evenly", "evenly spaced ranks of the score order"),
    PartSpec(
        Kind.SELECTOR,
        "critical",
        f"{__name__}.critical:Critical",
        "half by score, half by score times the value's effect on the output",
    ),
)
