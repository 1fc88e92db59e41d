"""Reads results files of schema 1, in which every trial was a needle test."""

from typing import Any

from kvfw.core.contracts.records import RENAMED


def results_2(data: dict[str, Any]) -> dict[str, Any]:
    """Converts results of schema 1 to schema 2. Invalid values pass through, for validation to find."""
    infos = [
        {**info, "name": RENAMED.get(info["name"], info["name"]), "primary": info["name"] == "recall"}
        for info in data["metrics"]
    ]
    # The oldest files have no comparisons.
    old = data.get("comparisons", ())
    compared = [_groups({**each, "metric": RENAMED.get(each["metric"], each["metric"])}) for each in old]
    return {**data, "schema": 2, "metrics": infos, "rows": [_row(row) for row in data["rows"]], "comparisons": compared}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    new = {name: value for name, value in row.items() if name != "recall_by_depth"}
    depths = {depth: {**cell, "mean": cell["hits"] / cell["n"]} for depth, cell in row["recall_by_depth"].items()}
    metrics = {RENAMED.get(name, name): _groups(summary) for name, summary in row["metrics"].items()}
    return {**new, "metrics": metrics, "by_facet": {"depth": depths} if len(depths) > 1 else {}}


def _groups(values: dict[str, Any]) -> dict[str, Any]:
    """Renames what schema 1 called runs, a length with a seed, to groups."""
    new = {"runs": "groups", "few_runs": "few_groups"}
    return {new.get(name, name): value for name, value in values.items()}
