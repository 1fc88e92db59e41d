"""Budgets from a file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.layer_views import shape_layers
from kvfw.core.compose.composition import parse
from kvfw.core.compress.allocation import allocated
from kvfw.errors import RunError, SpecError
from kvfw.methods.allocators.table import Table


def table(folder: Path, content: Any, **options: Any) -> Table:
    path = folder / "heads.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Table(file=str(path), **options)


def budgets(part: Table, totals: list[int], heads: list[int], middles: list[int]) -> list[list[list[int]]]:
    found = allocated(part, torch.tensor(totals), shape_layers(heads, middles))
    return [[layer[row].tolist() for layer in found] for row in range(len(totals))]


def test_weights_are_shares_of_the_total_exactly(tmp_path: Path) -> None:
    part = table(tmp_path, {"layers": [[3, 1], [0, 4]]})
    assert budgets(part, [16, 5], [2, 2], [20, 20]) == [[[6, 2], [0, 8]], [[2, 1], [0, 2]]]


def test_headkv_by_hand(tmp_path: Path) -> None:
    """A base of b - b / beta for every head and the rest by importance."""
    assert budgets(table(tmp_path, {"layers": [[0.75, 0.25]]}, floor=0.5), [16], [2], [20]) == [[[10, 6]]]


def test_duoattention_gives_streaming_heads_nothing_and_full_heads_everything(tmp_path: Path) -> None:
    part = table(tmp_path, {"layers": [["full", "streaming"], ["streaming", "full"]]})
    assert budgets(part, [20, 12], [2, 2], [10, 8]) == [[[10, 0], [0, 10]], [[6, 0], [0, 6]]]
    # More than the full heads can use goes to the others, since totals are exact.
    assert budgets(part, [24], [2, 2], [10]) == [[[10, 2], [2, 10]]]


def test_full_heads_come_before_weights(tmp_path: Path) -> None:
    part = table(tmp_path, {"layers": [["full", 3], [1, "streaming"]]})
    assert budgets(part, [14], [2, 2], [10]) == [[[10, 3], [1, 0]]]


def test_a_curve_is_interpolated_at_each_rows_kept_fraction(tmp_path: Path) -> None:
    part = table(tmp_path, {"curve": {"0.5": [[1, 1]], "0.1": [[3, 1]]}})
    # Kept 0.1, 0.3 (halfway: .625, .375), 0.5 and 0.05 of 2 x 80 slots.
    found = budgets(part, [16, 48, 80, 8], [2], [80] * 4)
    assert found == [[[12, 4]], [[30, 18]], [[40, 40]], [[6, 2]]]


def test_layers_are_those_of_the_model_compressed_or_not(tmp_path: Path) -> None:
    part = table(tmp_path, {"layers": [[9, 9], [3, 1], [9, 9]]})
    layer = shape_layers([1, 2], [20])[1]
    assert allocated(part, torch.tensor([8]), [layer])[0].tolist() == [[6, 2]]


def test_a_table_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    part = table(tmp_path, {"layers": [[1, 1], [1, 1]]})
    with pytest.raises(RunError, match=r"heads\.json has 2 entries for layer 1, which has 3 KV heads"):
        budgets(part, [10], [2, 3], [9])
    with pytest.raises(RunError, match=r"heads\.json has 2 layers, none for layer 2; it needs one for every layer"):
        budgets(part, [12], [2, 2, 2], [9])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("weights", "is no JSON text"),
        ("[" * 100_000, "is no JSON text"),
        ([[1, 2]], r'must be {"layers"'),
        ({"layers": [[1]], "curve": {}}, r'must be {"layers"'),
        ({"layers": []}, "must be a list with one list per layer"),
        ({"layers": [[1], []]}, "layer 1 must be a list with one entry per KV head"),
        ({"layers": [[1, -2]]}, 'layer 0, head 1 is -2; use a number of 0 or more, "full" or "streaming"'),
        ({"layers": [[1], [True]]}, "layer 1, head 0 is true; use a number"),
        ({"layers": [["lazy"]]}, 'layer 0, head 0 is "lazy"; use a number'),
        ('{"layers": [[NaN]]}', "layer 0, head 0 is NaN"),
        ('{"layers": [[1e999]]}', "layer 0, head 0 is Infinity"),
        ('{"layers": [[1' + "0" * 400 + "]]}", "layer 0, head 0 is 1000"),
        ({"curve": {}}, "must be an object of tables by kept fraction"),
        ({"curve": {"1.5": [[1]]}}, "the key '1.5'; use kept fractions above 0 and at most 1"),
        ({"curve": {"half": [[1]]}}, "the key 'half'"),
        ({"curve": {"nan": [[1]]}}, "the key 'nan'"),
        ({"curve": {"0.5": [["full"]]}}, r'curve 0\.5 of .* head 0 is "full"; use a number of 0 or more$'),
        ({"curve": {"0.5": [[1]], "0.1": [[1, 1]]}}, "must have the same layers and heads, and a fraction each"),
        ({"curve": {"0.5": [[1]], "0.50": [[1]]}}, "must have the same layers and heads, and a fraction each"),
    ],
)
def test_a_faulty_file_is_refused_at_once_with_its_fault(
    content: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(SpecError, match=r"t\.json") as error:
        parse("snapkv@table(file=t.json)")
    reason = str(error.value).splitlines()[0]
    assert re.search(says, reason), reason


def test_a_missing_file_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"table: the table no/heads\.json cannot be read: No such file or directory"):
        parse("snapkv@table(file=no/heads.json)")
    with pytest.raises(SpecError, match=r"cannot be read: Is a directory"):
        parse("snapkv@table(file=.)")


def test_its_text_parses_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("heads.json").write_text('{"layers": [[1, 2]]}')
    composition = parse("streaming@table(file=heads.json, floor=0.50)")
    assert str(composition) == "streaming@table(file=heads.json,floor=0.5)"
    assert parse(str(composition)) == composition
