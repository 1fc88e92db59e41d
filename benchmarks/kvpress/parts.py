"""The four measurements. Each asks both sides in turn and returns plain figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cases import LIBRARY, MATCHED, SHIPPED
from wire import Answer, Worker

Figures = dict[str, Any]
NEW_TOKENS = 16


@dataclass(frozen=True)
class Sides:
    """Both sides, loaded.

    Args:
        kvfw, kvpress: the workers.
    """

    kvfw: Worker
    kvpress: Worker

    def prompt(self, tokens: int, depth: float = 50.0) -> Answer:
        """A prompt of the needle task, made by kvfw."""
        found: Answer = self.kvfw.ask("prompts", grid=[[tokens, depth]])["prompts"][0]
        return found

    def in_turn(self, turn: int) -> Iterator[tuple[str, Worker]]:
        """Both, the other one first in every second round, so that none always follows the other."""
        both = [("kvfw", self.kvfw), ("kvpress", self.kvpress)]
        yield from both if turn % 2 == 0 else reversed(both)


def whole(sides: Sides, tokens: int, repeats: int) -> Figures:
    """A whole evaluation: prefill, compression and 16 tokens for every row (method x number of slots).

    kvfw shares work between rows, so it is asked for each set of methods; kvpress does row after row, so the time of a
    set is the sum over its rows.
    """
    slots = [tokens // 4, tokens // 8]
    request = {"ids": sides.prompt(tokens)["ids"], "slots": slots, "new_tokens": NEW_TOKENS}
    sets = {"without h2o": [name for name in MATCHED if name != "h2o"], "with h2o": list(MATCHED)}
    seconds: dict[str, dict[str, list[float]]] = {label: {"kvfw": [], "kvpress": []} for label in sets}
    for turn in range(repeats):
        for name, side in sides.in_turn(turn):
            if name == "kvfw":
                for label, cases in sets.items():
                    answer = side.ask("whole", cases=cases, **request)
                    assert answer["new_tokens"] == NEW_TOKENS * len(cases) * len(slots)
                    seconds[label]["kvfw"].append(answer["seconds"])
            else:
                rows = side.ask("whole", cases=list(MATCHED), **request)["rows"]
                assert all(row["new_tokens"] == NEW_TOKENS for row in rows)
                for label, cases in sets.items():
                    seconds[label]["kvpress"].append(sum(row["seconds"] for row in rows if row["case"] in cases))
    found: Figures = {"tokens": tokens, "slots": slots, "new_tokens": NEW_TOKENS, "repeats": repeats}
    for label, taken in seconds.items():
        ratios = [a / b for a, b in zip(taken["kvfw"], taken["kvpress"], strict=True)]
        found[label] = {"rows": len(sets[label]) * 2, "seconds": taken, "kvfw_over_kvpress": median(ratios)}
    return found


def overhead(sides: Sides, tokens: int, repeats: int) -> Figures:
    """What compressing adds to a prefill, what it leaves in memory, and how fast decoding over it is."""
    ids, slots = sides.prompt(tokens)["ids"], tokens // 4
    found: Figures = {"tokens": tokens, "slots": slots, "repeats": repeats, "kvfw": {}, "kvpress": {}}
    plain: dict[str, list[float]] = {"kvfw": [], "kvpress": []}
    eager: list[float] = []
    ones: dict[str, dict[str, list[Answer]]] = {side: {case: [] for case in MATCHED} for side in plain}
    # One more round, not counted: what libraries do once is done in it.
    for turn in range(repeats + 1):
        for name, side in sides.in_turn(turn):
            plain[name].append(side.ask("plain", ids=ids, attention="sdpa")["prefill_s"])
        # The press for observed attention needs eager attention, so what that costs by itself is shown.
        eager.append(sides.kvpress.ask("plain", ids=ids, attention="eager")["prefill_s"])
        looked = sides.kvfw.ask("look", ids=ids, cases=list(MATCHED), slots=slots, new_tokens=1)["cases"]
        for case in MATCHED:
            for name, side in sides.in_turn(turn):
                request = {"ids": ids, "case": case, "slots": slots, "new_tokens": NEW_TOKENS, "look": False}
                ones[name][case].append(side.ask("one", **request))
            # A press is timed while it works. kvfw's attach has no such place for a clock of ours.
            ones["kvfw"][case][-1]["inside_s"] = looked[case]["compress_s"]
    for name in plain:
        found[name]["plain_s"] = plain[name][1:]
        found[name]["cases"] = {case: _added(ones[name][case][1:], plain[name][1:]) for case in MATCHED}
    found["kvpress"]["plain_eager_s"] = eager[1:]
    return found


def _added(answers: Sequence[Answer], plain: Sequence[float]) -> Figures:
    added = [(one["prefill_s"] - base) / base for one, base in zip(answers, plain, strict=True)]
    inside = [one["inside_s"] / base for one, base in zip(answers, plain, strict=True)]
    return {
        "prefill_s": [one["prefill_s"] for one in answers],
        "inside_s": [one["inside_s"] for one in answers],
        "added_fraction": median(added),
        "inside_fraction": median(inside),
        "decode_s": [one["decode_s"] for one in answers],
        "decode_tokens_per_s": median((NEW_TOKENS - 1) / one["decode_s"] for one in answers),
        "kv_bytes": answers[0]["kv_bytes"],
        "overhead_bytes": answers[0]["overhead_bytes"],
    }


def memory(start: dict[str, Any], prompt: Answer) -> Figures:
    """Peak of one prefill, each in a process of its own. ``start`` makes a loaded side by name."""
    tokens = prompt["tokens"]
    found: Figures = {"tokens": tokens, "slots": tokens // 4, "kvfw": {}, "kvpress": {}}
    for case in ("plain sdpa", "plain eager", *MATCHED):
        for name in ("kvfw", "kvpress"):
            side = start[name]()
            found[name][case] = side.ask("peak", ids=prompt["ids"], case=case, slots=tokens // 4)["peak_bytes"]
            side.close()
    return found


def agreement(sides: Sides, lengths: Sequence[int], depths: Sequence[float]) -> Figures:
    """How far the sides keep the same tokens and write the same text, matched and with kvfw's own defaults."""
    names = [*MATCHED, *SHIPPED]
    table: dict[str, list[Figures]] = {name: [] for name in names}
    logits: list[float] = []
    for tokens in lengths:
        for depth in depths:
            prompt = sides.prompt(tokens, depth)
            common = {"ids": prompt["ids"], "slots": tokens // 4, "new_tokens": NEW_TOKENS}
            looked = sides.kvfw.ask("look", cases=names, **common)["cases"]
            for case, shipped in zip(MATCHED, SHIPPED, strict=True):
                other = sides.kvpress.ask("one", case=case, look=True, **common)
                for name in (case, shipped):
                    table[name].append(_compared(looked[name], other, prompt))
            if depth == depths[0]:
                attached = sides.kvfw.ask("one", case="snapkv", look=True, **common)
                if attached["kept"] != looked["snapkv"]["kept"]:
                    raise SystemExit("error: kvfw keeps other tokens under attach than from a shared prefill")
                plain = [side.ask("plain", ids=prompt["ids"], attention="sdpa") for _, side in sides.in_turn(0)]
                logits.append(max(abs(a - b) for a, b in zip(plain[0]["logits"], plain[1]["logits"], strict=True)))
    return {
        "lengths": list(lengths),
        "depths": list(depths),
        "slots": "a quarter of the prompt's tokens",
        "plain_logit_difference": max(logits),
        "cases": {name: _summed(rows) for name, rows in table.items()},
    }


def library(sides: Sides, lengths: Sequence[int], depths: Sequence[float]) -> Figures:
    """Kept tokens, seconds of compressing and bytes held of every other method that both have."""
    table: dict[str, list[Figures]] = {name: [] for name in LIBRARY}
    for tokens in lengths:
        for depth in depths:
            prompt = sides.prompt(tokens, depth)
            common = {"ids": prompt["ids"], "slots": tokens // 4, "new_tokens": NEW_TOKENS}
            for name in LIBRARY:
                own = sides.kvfw.ask("one", case=name, look=True, **common)
                own["inside_s"] = sides.kvfw.ask("look", cases=[name], **common)["cases"][name]["compress_s"]
                other = sides.kvpress.ask("one", case=name, look=True, **common)
                table[name].append({**_overlap(own, other), **_held(own, other)})
    return {
        "lengths": list(lengths),
        "depths": list(depths),
        "slots": "a quarter of the prompt's tokens",
        "cases": {name: {**_library_row(rows), "why": LIBRARY[name].why} for name, rows in table.items()},
    }


def _held(own: Answer, other: Answer) -> Figures:
    """Bytes and seconds of both sides."""
    kinds = ("kv_bytes", "overhead_bytes", "inside_s", "prefill_s")
    return {side: {kind: answer[kind] for kind in kinds} for side, answer in (("kvfw", own), ("kvpress", other))}


def _overlap(one: Answer, other: Answer) -> Figures:
    """How alike the kept sets are, which here may differ in size."""
    pairs = [
        (set(a), set(b))
        for layer, others in zip(one["kept"], other["kept"], strict=True)
        for a, b in zip(layer, others, strict=True)
    ]
    return {
        "jaccard": [len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs],
        "slots": [sum(len(heads[side]) for heads in pairs) / len(pairs) for side in (0, 1)],
        "same_tokens": one["tokens"] == other["tokens"],
    }


def _library_row(rows: Sequence[Figures]) -> Figures:
    jaccard = [value for row in rows for value in row["jaccard"]]
    found: Figures = {
        "prompts": len(rows),
        "layers_x_heads_x_prompts": len(jaccard),
        "identical_sets": sum(value == 1.0 for value in jaccard),
        "jaccard_mean": sum(jaccard) / len(jaccard),
        "jaccard_least": min(jaccard),
        "same_responses": sum(row["same_tokens"] for row in rows),
    }
    for number, side in enumerate(("kvfw", "kvpress")):
        found[side] = {kind: median(row[side][kind] for row in rows) for kind in rows[0][side]}
        found[side]["mean_slots"] = sum(row["slots"][number] for row in rows) / len(rows)
    return found


def _compared(one: Answer, other: Answer, prompt: Answer) -> Figures:
    heads = [set(head) for layer in one["kept"] for head in layer]
    others = [set(head) for layer in other["kept"] for head in layer]
    if {len(head) for head in heads} != {len(head) for head in others} or len(heads) != len(others):
        raise SystemExit("error: the sides kept different numbers of slots, so nothing is compared")
    return {
        "jaccard": [len(a & b) / len(a | b) for a, b in zip(heads, others, strict=True)],
        "same_tokens": one["tokens"] == other["tokens"],
        "recalled": (prompt["answer"] in one["text"], prompt["answer"] in other["text"]),
    }


def _summed(rows: Sequence[Figures]) -> Figures:
    jaccard = [value for row in rows for value in row["jaccard"]]
    return {
        "prompts": len(rows),
        "layers_x_heads_x_prompts": len(jaccard),
        "identical_sets": sum(value == 1.0 for value in jaccard),
        "jaccard_mean": sum(jaccard) / len(jaccard),
        "jaccard_least": min(jaccard),
        "same_responses": sum(row["same_tokens"] for row in rows),
        "recalled": {
            "kvfw": sum(row["recalled"][0] for row in rows),
            "kvpress": sum(row["recalled"][1] for row in rows),
        },
    }
