"""Makes a task's samples in another process: ``python -m kvfw.verify.instruments.other_process``.

Reads a pickled task, written by the calling process, and a number of samples from standard input; writes one digest per
line.
"""

import hashlib
import os
import pickle
import subprocess
import sys
from itertools import islice

from kvfw.core.contracts.task import Sample, Task
from kvfw.errors import RunError
from kvfw.verify.instruments.tokenizer import SuiteTokenizer


def digest(sample: Sample) -> str:
    """SHA-256 of everything in a sample."""
    return hashlib.sha256(repr(sample).encode()).hexdigest()


def digests(task: Task, count: int) -> list[str]:
    """Digests of the first samples, made in this process."""
    return [digest(sample) for sample in islice(task.samples(SuiteTokenizer()), count)]


def digests_elsewhere(task: Task, count: int, hash_seed: int) -> list[str]:
    """Digests of the first samples, made in a fresh process with another hash seed.

    Raises:
        RunError: the other process failed; the message has its last line.
    """
    done = subprocess.run(
        [sys.executable, "-m", "kvfw.verify.instruments.other_process"],
        input=pickle.dumps((task, count)),
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": str(hash_seed)},
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise RunError(f"another process cannot make the task's samples: {last}")
    return done.stdout.decode().split()


if __name__ == "__main__":
    given, asked = pickle.load(sys.stdin.buffer)
    print("\n".join(digests(given, asked)))
