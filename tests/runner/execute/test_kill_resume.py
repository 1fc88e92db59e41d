"""A run killed at random moments, also in the middle of a write, and resumed: the same results, nothing lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvfw.core.contracts.records import TrialRecord
from kvfw.store.run_folder import load_run

pytestmark = pytest.mark.slow

KILLS = 20

#: Imports once and forks a child per attempt: starting Python and torch twenty times would take minutes.
HARNESS = """
import json, os, random, signal, sys, time
from pathlib import Path
import kvfw.runner.execute.trial, kvfw.model.load.load, kvfw.analysis.samples
from kvfw.core.registry.registry import default_registry, register
from kvfw.runner.plan.config import EvalConfig
from kvfw.runner.execute.evaluate import evaluate

model, root, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
# Without the sentence encoder, which would be loaded anew in every child.
registry = register(spec for spec in default_registry().specs.values() if spec.name != "embed_cos")

def attempt(folder):
    config = EvalConfig.of({
        "model": model, "out": folder, "compose": ["snapkv", "snapkv:0.5+ewmeans_pre:0.5"], "contexts": [300],
        "depths": [10, 50, 90], "seeds": 2, "max_new_tokens": 3, "resume": (folder / "config.json").exists(),
    })
    pid = os.fork()
    if pid == 0:
        try:
            evaluate(config, registry=registry, report=False)
        except BaseException as error:
            print(f"child failed: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return pid

started = time.perf_counter()
_, status = os.waitpid(attempt(root / "whole"), 0)
assert status == 0
whole_s = time.perf_counter() - started
rng = random.Random(int(sys.argv[4]))
done, finished = 0, 0
while True:
    folder = root / f"cut{finished}"
    pid = attempt(folder)
    if done < kills:
        time.sleep(rng.uniform(0.05, 1.0) * whole_s)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        done += 1
    else:
        assert status == 0, "a resumed run failed"
        finished += 1
    # The folder at hand is finished too: every one must end as if it had not been interrupted.
    if done >= kills and not os.WIFSIGNALED(status):
        break
print(json.dumps({"kills": done, "finished": finished}))
"""


def comparable(record: TrialRecord) -> dict[str, object]:
    """All of a record but the clock's readings."""
    data = record.model_dump(exclude={"seconds"})
    return {**data, "metrics": {name: value for name, value in record.metrics.items() if name != "tok_s"}}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks children to kill")
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(tiny_folder: Path, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4))
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, str(tiny_folder), str(tmp_path), str(KILLS), str(seed)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["kills"] >= KILLS
    whole = {record.key: comparable(record) for record in load_run(tmp_path / "whole").records}
    assert len(whole) == 18
    folders = sorted(tmp_path.glob("cut*"))
    assert len(folders) == counted["finished"]
    for folder in folders:
        run = load_run(folder)
        assert not run.problems, f"seed {seed}: {run.problems}"
        assert len(run.records) == 18
        assert {record.key: comparable(record) for record in run.records} == whole, f"seed {seed}"
