"""Ranges of a model's layers, as a policy names them: ``0-3``, ``16-``, ``-1``, ``odd``, ``even``."""

import re
from dataclasses import dataclass, field

RANGE = re.compile(r"odd|even|-\d+|\d+-?\d*")
_BOUNDS = re.compile(r"(\d+)(-?)(\d*)")


@dataclass(frozen=True)
class LayerRange:
    """One range of layer indices.

    Args:
        text: ``"7"``, ``"0-3"`` (both included), ``"16-"`` (to the last), ``"-1"`` (counted from the end), ``"odd"`` or
            ``"even"``.
        at: index of its first character in the composition.

    Raises:
        ValueError: a range that ends before it begins.
    """

    text: str
    at: int = field(compare=False)

    def __post_init__(self) -> None:
        first, _, last = self.text.partition("-")
        if first and last and int(last) < int(first):
            raise ValueError(f"layers {self.text} end before they begin; write {int(last)}-{int(first)}")

    def __str__(self) -> str:
        return self.text

    def of(self, depth: int) -> list[int]:
        """Its layers in a model of ``depth`` layers.

        Raises:
            ValueError: it names a layer that the model does not have.
        """
        if self.text in ("odd", "even"):
            return list(range(self.text == "odd", depth, 2))
        if self.text.startswith("-"):
            first = last = depth + int(self.text)
        else:
            found = _BOUNDS.fullmatch(self.text)
            assert found is not None
            first = int(found[1])
            last = (int(found[3]) if found[3] else depth - 1) if found[2] else first
        if not 0 <= first <= last < depth:
            raise ValueError(f"layers {self.text}: the model has {depth} layers, 0 to {depth - 1}")
        return list(range(first, last + 1))
