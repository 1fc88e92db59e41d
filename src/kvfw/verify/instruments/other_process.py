"""Builds a task's prompts in a process of its own: ``python -m kvfw.verify.instruments.other_process``.

Reads a pickled task and its trials from standard input and writes one line per prompt. The pickle is what the
calling process wrote itself.
"""

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence

from kvfw.core.contracts.task import Prompt, Task, Trial
from kvfw.errors import RunError
from kvfw.verify.instruments.tokenizer import SuiteTokenizer


def digest(prompt: Prompt) -> str:
    """SHA-256 of everything in a prompt."""
    return hashlib.sha256(repr(prompt).encode()).hexdigest()


def digests(task: Task, trials: Sequence[Trial]) -> list[str]:
    """Of the prompts as this process builds them."""
    tokenizer = SuiteTokenizer()
    return [digest(task.prompt(tokenizer, trial)) for trial in trials]


def digests_elsewhere(task: Task, trials: Sequence[Trial], hash_seed: int) -> list[str]:
    """Of the prompts as a fresh process builds them, which hashes strings in its own way.

    Raises:
        RunError: the other process failed; the message has its last line.
    """
    done = subprocess.run(
        [sys.executable, "-m", "kvfw.verify.instruments.other_process"],
        input=pickle.dumps((task, tuple(trials))),
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": str(hash_seed)},
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise RunError(f"another process cannot build the task's prompts: {last}")
    return done.stdout.decode().split()


if __name__ == "__main__":
    given, asked = pickle.load(sys.stdin.buffer)
    print("\n".join(digests(given, asked)))
