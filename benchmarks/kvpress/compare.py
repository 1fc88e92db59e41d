"""kvfw and kvpress side by side, each in a virtual environment of its own. Run by hand; see README.md.

    python benchmarks/kvpress/compare.py --kvfw-python A/bin/python --kvpress-python B/bin/python

Needs nothing but Python; what it measures needs Linux.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parts import Sides, agreement, library, memory, overhead, whole
from tables import markdown
from wire import CLOCKS, Worker

PARTS = ("overhead", "whole", "memory", "agreement", "library")
SETUP = """\
Two virtual environments are needed (on a machine without a GPU take torch from PyTorch's CPU index):
  python -m venv A && A/bin/pip install --constraint constraints.txt . ./plugins/kvfw-keynorm
  python -m venv B && B/bin/pip install --requirement benchmarks/kvpress/requirements-kvpress.txt
Then
  python benchmarks/kvpress/compare.py --kvfw-python A/bin/python --kvpress-python B/bin/python"""


def arguments() -> argparse.Namespace:
    """What the user asked for."""
    reader = argparse.ArgumentParser(description="kvfw and kvpress side by side", epilog="Without both: says how.")
    reader.add_argument("--kvfw-python", help="interpreter of kvfw's virtual environment")
    reader.add_argument("--kvpress-python", help="interpreter of kvpress's virtual environment")
    reader.add_argument("--threads", type=int, default=1, help="threads of torch on both sides")
    reader.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="cpu: for a machine that others use, too"
    )
    reader.add_argument("--repeats", type=int, default=3, help="rounds of whatever is timed")
    reader.add_argument("--whole-tokens", type=int, nargs="+", default=[1024, 2048], help="prompts of `whole`")
    reader.add_argument("--overhead-tokens", type=int, default=2048, help="prompt of `overhead`")
    reader.add_argument("--memory-tokens", type=int, default=3072, help="prompt of `memory`")
    reader.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 3072], help="prompts of `agreement`")
    reader.add_argument("--library-lengths", type=int, nargs="+", default=[1024], help="prompts of `library`")
    reader.add_argument("--depths", type=float, nargs="+", default=[10.0, 50.0, 90.0], help="needles of `agreement`")
    reader.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    reader.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    return reader.parse_args()


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": model, "cores": os.cpu_count(), "memory_gib": round(pages / 2**30), "system": platform.system()}


def main() -> int:
    """Measures the parts asked for and writes them over those of an earlier run. 0: done, 2: cannot begin."""
    asked = arguments()
    missing = [p for p in (asked.kvfw_python, asked.kvpress_python) if p is None or not Path(p).exists()]
    if missing:
        print(SETUP, file=sys.stderr)
        return 2
    known = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    versions: dict[str, dict[str, str]] = {}
    folder = ""

    def start(name: str, python: str, script: str) -> Worker:
        nonlocal folder
        side = Worker(python, script, asked.threads)
        loaded = side.ask("load", threads=asked.threads, clock=asked.clock, folder=folder)
        versions[name] = loaded["versions"]
        folder = loaded.get("folder", folder)
        return side

    starts = {
        "kvfw": lambda: start("kvfw", asked.kvfw_python, "kvfw_side.py"),
        "kvpress": lambda: start("kvpress", asked.kvpress_python, "kvpress_side.py"),
    }
    sides = Sides(starts["kvfw"](), starts["kvpress"]())
    work: dict[str, Callable[[], Any]] = {
        "whole": lambda: [whole(sides, tokens, asked.repeats) for tokens in asked.whole_tokens],
        "overhead": lambda: overhead(sides, asked.overhead_tokens, asked.repeats),
        "memory": lambda: memory(starts, sides.prompt(asked.memory_tokens)),
        "agreement": lambda: agreement(sides, asked.lengths, asked.depths),
        "library": lambda: library(sides, asked.library_lengths, asked.depths),
    }
    for part in asked.parts:
        began, load = time.time(), os.getloadavg()[0]
        figures = work[part]()
        known[part] = {
            "machine": machine(),
            "versions": versions,
            "threads": asked.threads,
            "clock": asked.clock,
            "load_average_1min": {"before": load, "after": os.getloadavg()[0]},
            "took_s": round(time.time() - began),
            "figures": figures,
        }
        asked.out.write_text(json.dumps(known, indent=1) + "\n")
    sides.kvfw.close()
    sides.kvpress.close()
    print(markdown(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
