"""Budgets from a file: HeadKV's shares, LU-KV's curve, DuoAttention's pattern."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float64, Int64
from pydantic import Field, PrivateAttr
from torch import Tensor

from kvfw.core.contracts.parts import LayerView
from kvfw.core.ops.layer_shares import per_head
from kvfw.core.ops.rounding import by_weight
from kvfw.core.parts.files import FileOption
from kvfw.core.parts.part import Part, Scope
from kvfw.errors import RunError

#: A head's entry: its weight; ``full``: its whole middle, before others get anything; ``streaming``: weight 0.
Entry = float | Literal["full", "streaming"]
#: Entries by layer of the model and KV head.
Heads = list[list[Entry]]

WORDS = ("full", "streaming")
#: Weights above this could overflow when they are added up.
LARGEST = 1e300


class Table(Part):
    """Slots in proportion to a table's weight of every layer and head.

    ``b_lh = floor b + (1 - floor) T w_lh / sum w`` for a total of T slots and a mean of b per head. What exceeds a
    head's middle is divided among the others by the same rule.

    The file is JSON, in one of two forms; a layer is a list with one entry per KV head, and there is a layer for every
    layer of the model, first to last, compressed or not::

        {"layers": [[0.75, 0.25], ["full", "streaming"]]}
        {"curve": {"0.1": [[3, 1], [2, 2]], "0.5": [[1, 1], [1, 1]]}}

    An entry is a weight of 0 or more; ``"full"``: the head's whole middle, before others get anything; or
    ``"streaming"``: sinks and recent tokens only, weight 0 without a floor. A head of weight 0 gets slots only when
    all others have their whole middle, since budgets add up to the total. A curve has weights, no words, for several
    kept fractions of the middle; between two of them weights, each fraction's summing to 1, are interpolated linearly,
    and beyond the first and last they stay the same.

    Paper: HeadKV (importance of heads as weights, ``floor = 1 - 1 / beta``): Fu et al. 2024, Not All Heads Matter: A
    Head-Level KV Cache Compression Method with Integrated Retrieval and Reasoning, arXiv 2410.19258. LU-KV (a curve):
    Tang et al. 2026, Predicting Future Utility: Global Combinatorial Optimization for Task-Agnostic KV Cache Eviction,
    arXiv 2602.08585. ``full`` and ``streaming``: Xiao et al. 2024, DuoAttention: Efficient Long-Context LLM Inference
    with Retrieval and Streaming Heads, arXiv 2410.10819.

    Deviations: totals are exact over the whole model, where HeadKV rounds head by head and LU-KV rounds within a layer.
    DuoAttention's retrieval heads keep everything; here they do as far as the total allows. HeadKV scores query heads;
    a table has one entry per KV head.
    """

    scope: ClassVar[Scope] = "shape"

    file: Annotated[str, FileOption()] = Field(description="path of the JSON file", examples=["heads.json"])
    floor: float = Field(0, ge=0, le=1, description="part of an equal share that every head gets")
    _points: list[tuple[float, Heads]] = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Reads and checks the file.

        Raises:
            ValueError: there is no such file, or it is no such table; with the place of the fault.
        """
        self._points = read_table(self.file)

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """Slots per layer and head.

        Raises:
            RunError: the table has another number of heads than the model, or too few layers.
        """
        points = [(kept, self._entries(table, layers)) for kept, table in self._points]
        most = per_head(layers, total.device)
        weights = _interpolated(points, total.to(torch.float64) / most.sum(1).clamp(min=1))
        full = torch.tensor([entry == "full" for entry in points[0][1]], device=total.device)
        first = most.masked_fill(~full, 0)
        heads = [layer.kv_heads for layer in layers]
        # Two rounds of the same rule: the whole heads among themselves, then the rest.
        whole = by_weight(full.to(torch.float64).expand_as(weights), total.minimum(first.sum(1)), first)
        left = total - whole.sum(1)
        floor = (self.floor * left.to(torch.float64) / (~full).sum().clamp(min=1))[:, None] * ~full
        rest = by_weight(weights, left, most - whole, floor.expand_as(weights))
        return list(torch.split(whole + rest, heads, 1))

    def _entries(self, table: Heads, layers: Sequence[LayerView]) -> list[Entry]:
        """The entries of the compressed layers' heads."""
        for layer in layers:
            if layer.index >= len(table):
                raise RunError(
                    f"table {self.file} has {len(table)} layers, none for layer {layer.index}; it needs one for every "
                    "layer of the model"
                )
            if len(table[layer.index]) != layer.kv_heads:
                raise RunError(
                    f"table {self.file} has {len(table[layer.index])} entries for layer {layer.index}, which has "
                    f"{layer.kv_heads} KV heads"
                )
        return [entry for layer in layers for entry in table[layer.index]]


def _interpolated(
    points: Sequence[tuple[float, Sequence[Entry]]], kept: Float64[Tensor, " B"]
) -> Float64[Tensor, "B heads"]:
    """Every row's weights, for its kept fraction."""
    table = torch.tensor(
        [[0.0 if isinstance(entry, str) else entry for entry in entries] for _, entries in points],
        dtype=torch.float64,
        device=kept.device,
    )
    table = table / table.sum(1, keepdim=True).clamp(min=1e-300)
    at = torch.tensor([place for place, _ in points], dtype=torch.float64, device=kept.device)
    after = torch.searchsorted(at, kept).clamp(max=len(points) - 1)
    before = (after - 1).clamp(min=0)
    gap = (at[after] - at[before]).clamp(min=1e-300)
    share = ((kept - at[before]) / gap).clamp(0, 1)[:, None]
    return table[before] + share * (table[after] - table[before])


def read_table(file: str) -> list[tuple[float, Heads]]:
    """The tables of a file, by the kept fraction they are for, ascending; one at 1 where it has no curve.

    Raises:
        ValueError: there is no such file, or it is no such table; with the place of the fault.
    """
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the table {file} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the table {file} is no JSON text: {error}") from error
    if not isinstance(found, dict) or len(found) != 1 or not found.keys() <= {"layers", "curve"}:
        raise ValueError(f'the table {file} must be {{"layers": [...]}} or {{"curve": {{"0.1": [...], ...}}}}')
    if "layers" in found:
        return [(1.0, _checked(found["layers"], f"layers of {file}", words=True))]
    curve = found["curve"]
    if not isinstance(curve, dict) or not curve:
        raise ValueError(f"the curve of {file} must be an object of tables by kept fraction")
    points = [(_fraction(key, file), _checked(table, f"curve {key} of {file}")) for key, table in curve.items()]
    points.sort(key=lambda point: point[0])
    shapes = [[len(layer) for layer in table] for _, table in points]
    if any(shape != shapes[0] for shape in shapes) or len({kept for kept, _ in points}) < len(points):
        raise ValueError(f"the tables of the curve of {file} must have the same layers and heads, and a fraction each")
    return points


def _fraction(key: str, file: str) -> float:
    try:
        kept = float(key)
    except ValueError:
        kept = -1.0
    if not 0 < kept <= 1:
        raise ValueError(f"the curve of {file} has the key {key!r}; use kept fractions above 0 and at most 1")
    return kept


def _checked(table: object, where: str, words: bool = False) -> Heads:
    """The table, with numbers as floats; a ValueError names the entry that is none."""
    if not isinstance(table, list) or not table:
        raise ValueError(f"{where} must be a list with one list per layer")
    for index, layer in enumerate(table):
        if not isinstance(layer, list) or not layer:
            raise ValueError(f"{where}: layer {index} must be a list with one entry per KV head")
        for head, entry in enumerate(layer):
            number = isinstance(entry, int | float) and not isinstance(entry, bool) and 0 <= entry <= LARGEST
            if not number and not (words and entry in WORDS):
                raise ValueError(
                    f"{where}: layer {index}, head {head} is {json.dumps(entry)}; use a number of 0 or more"
                    + (f", {json.dumps(WORDS[0])} or {json.dumps(WORDS[1])}" if words else "")
                )
    return [[_entry(entry) for entry in layer] for layer in table]


def _entry(entry: Any) -> Entry:
    word: Entry = entry
    return word if isinstance(entry, str) else float(entry)
