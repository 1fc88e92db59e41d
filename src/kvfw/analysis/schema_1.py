"""Reads results files of schema 1, in which every trial was a needle test."""

from typing import Any

from kvfw.core.contracts.records import RENAMED


def results_2(data: dict[str, Any]) -> dict[str, Any]:
    """Results of schema 1 as results of schema 2. What is wrong in them stays wrong, for validation to find."""
    infos = [
        {**info, "name": RENAMED.get(info["name"], info["name"]), "primary": info["name"] == "recall"}
        for info in data["metrics"]
    ]
    compared = [_groups({**each, "metric": RENAMED.get(each["metric"], each["metric"])}) for each in _compared(data)]
    return {**data, "schema": 2, "metrics": infos, "rows": [_row(row) for row in data["rows"]], "comparisons": compared}


def _compared(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The comparisons; none in files from before there were any."""
    return list(data.get("comparisons", ()))


def _row(row: dict[str, Any]) -> dict[str, Any]:
    new = {name: value for name, value in row.items() if name != "recall_by_depth"}
    depths = {depth: {**cell, "mean": cell["hits"] / cell["n"]} for depth, cell in row["recall_by_depth"].items()}
    metrics = {RENAMED.get(name, name): _groups(summary) for name, summary in row["metrics"].items()}
    return {**new, "metrics": metrics, "by_facet": {"depth": depths} if len(depths) > 1 else {}}


def _groups(values: dict[str, Any]) -> dict[str, Any]:
    """What was called a run, a length with a seed, is a group."""
    new = {"runs": "groups", "few_runs": "few_groups"}
    return {new.get(name, name): value for name, value in values.items()}
