"""How the driver talks to a side: one JSON object a line, a request and its answer. Nothing but Python."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Request = dict[str, Any]
Answer = dict[str, Any]

#: What seconds mean. ``cpu`` counts what the process computed, also where others took its core; with several threads it
#: counts each of them.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def serve(answer: Callable[[Request], Answer]) -> None:
    """Answers requests from standard input until it ends. What libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        for line in sys.stdin:
            out.write(json.dumps(answer(json.loads(line))) + "\n")
            out.flush()


class Worker:
    """A side in a process of its own.

    Args:
        python: interpreter of the side's virtual environment.
        script: file of the side, beside this one.
        threads: threads of torch's operations.
    """

    def __init__(self, python: str, script: str, threads: int) -> None:
        # Both sides wait at OpenMP barriers as kvfw's command line does; a long spin starves whoever holds the core.
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "3000"}
        self._script = script
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, do: str, **request: Any) -> Answer:
        """The side's answer.

        Raises:
            SystemExit: the side ended; it said why on standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"error: {self._script} ended while asked to {do!r}; its own message is above")
        found: Answer = json.loads(line)
        return found

    def close(self) -> None:
        """Ends the side."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
