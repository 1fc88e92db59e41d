"""The figures as Markdown."""

from statistics import median
from typing import Any

Figures = dict[str, Any]


def markdown(results: Figures) -> str:
    """A table per part that was measured."""
    parts = (
        ("whole", whole),
        ("overhead", overhead),
        ("memory", memory),
        ("agreement", agreement),
        ("library", library),
    )
    return "\n".join(table(results[name]["figures"]) for name, table in parts if name in results)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def whole(runs: list[Figures]) -> str:
    """Whole evaluations."""
    rows = [
        [
            f"{part['rows']} rows {label}, {run['tokens']} tokens",
            f"{median(part['seconds']['kvfw']):.1f} s",
            f"{median(part['seconds']['kvpress']):.1f} s",
            f"{part['kvfw_over_kvpress']:.2f}",
        ]
        for run in runs
        for label, part in run.items()
        if label in ("without h2o", "with h2o")
    ]
    return _table(["whole evaluation", "kvfw", "kvpress", "kvfw / kvpress"], rows)


def overhead(found: Figures) -> str:
    """Compression beside prefill, what is held, and decode speed."""
    head = [f"{found['tokens']} tokens, {found['slots']} slots"]
    head += ["prefill s", "added", "inside", "decode tok/s", "K+V MiB", "other MiB"]
    rows = []
    for side in ("kvfw", "kvpress"):
        own = found[side]
        rows.append([f"{side}: plain sdpa", f"{median(own['plain_s']):.2f}", "", "", "", "", ""])
        if "plain_eager_s" in own:
            rows.append([f"{side}: plain eager", f"{median(own['plain_eager_s']):.2f}", "", "", "", "", ""])
        for case, cost in own["cases"].items():
            rows.append(
                [
                    f"{side}: {case}",
                    f"{median(cost['prefill_s']):.2f}",
                    f"{cost['added_fraction']:+.1%}",
                    f"{cost['inside_fraction']:.1%}",
                    f"{cost['decode_tokens_per_s']:.1f}",
                    f"{cost['kv_bytes'] / 2**20:.2f}",
                    f"{cost['overhead_bytes'] / 2**20:.2f}",
                ]
            )
    return _table(head, rows)


def memory(found: Figures) -> str:
    """Peaks."""
    rows = [[case, *(f"{found[side][case] / 2**20:.0f}" for side in ("kvfw", "kvpress"))] for case in found["kvfw"]]
    return _table([f"peak of a prefill, MiB, {found['tokens']} tokens", "kvfw", "kvpress"], rows)


def agreement(found: Figures) -> str:
    """Kept tokens and responses."""
    rows = [
        [
            case,
            f"{row['identical_sets']} of {row['layers_x_heads_x_prompts']}",
            f"{row['jaccard_mean']:.3f}",
            f"{row['jaccard_least']:.3f}",
            f"{row['same_responses']} of {row['prompts']}",
            f"{row['recalled']['kvfw']}, {row['recalled']['kvpress']}",
        ]
        for case, row in found["cases"].items()
    ]
    head = ["kept tokens", "sets identical", "Jaccard, mean", "least", "same 16 tokens", "needle found: kvfw, kvpress"]
    return _table(head, rows)


def library(found: Figures) -> str:
    """Kept tokens, bytes and seconds of every other method that both have."""
    head = ["method", "sets identical", "Jaccard, mean", "least", "same 16 tokens", "slots a head: kvfw, kvpress"]
    head += ["K+V MiB held: kvfw, kvpress", "compressing, ms: kvfw, kvpress", "why they differ"]
    sides = ("kvfw", "kvpress")
    rows = [
        [
            case,
            f"{row['identical_sets']} of {row['layers_x_heads_x_prompts']}",
            f"{row['jaccard_mean']:.3f}",
            f"{row['jaccard_least']:.3f}",
            f"{row['same_responses']} of {row['prompts']}",
            ", ".join(f"{row[side]['mean_slots']:.1f}" for side in sides),
            ", ".join(f"{row[side]['kv_bytes'] / 2**20:.1f}" for side in sides),
            ", ".join(f"{row[side]['inside_s'] * 1000:.0f}" for side in sides),
            row["why"],
        ]
        for case, row in found["cases"].items()
    ]
    return _table(head, rows)
