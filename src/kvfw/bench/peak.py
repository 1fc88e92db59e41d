"""Measures one prefill's memory in a process of its own, where nothing else was allocated before.

Run as ``python -m kvfw.bench.peak``; reads and prints JSON. The peak is the whole process's (resident set on a CPU,
allocated bytes on CUDA), less what it held before the prefill. glibc is set to return large blocks as soon as they are
freed: otherwise what it retains differs by 100 MB between two runs of the same program.
"""

import json
import sys
from dataclasses import asdict, dataclass

from kvfw.bench.limits import RECENT, SINKS
from kvfw.bench.process import run_python

PROMPTLY = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
"""glibc maps blocks of this many bytes or more separately. Other C libraries ignore the setting."""


@dataclass(frozen=True)
class Peak:
    """Memory of one prefill.

    Attributes:
        peak_bytes: most memory the process held during the prefill, above what it held before.
        kv_bytes: keys and values that the compressible layers hold after the prefill.
        expected_kv_bytes: valid slots x bytes per slot.
        layer_bytes: keys and values of one layer of the full cache.
    """

    peak_bytes: int
    kv_bytes: int
    expected_kv_bytes: int
    layer_bytes: int


def peak_of(model: str, device: str, ids: list[int], compose: str | None, ratio: int, chunk: int | None) -> Peak:
    """Measures one prefill under ``attach``; with ``compose=None``, the plain model with its full cache.

    Raises:
        RunError: the process failed; the message has its last line.
    """
    request = {"model": model, "device": device, "ids": ids, "compose": compose, "ratio": ratio, "chunk": chunk}
    said = run_python("measuring memory", "-m", "kvfw.bench.peak", stdin=json.dumps(request), **PROMPTLY)
    return Peak(**json.loads(said.splitlines()[-1]))


def _child() -> None:
    import torch

    from kvfw.bench.resident import Resident
    from kvfw.core.compose.budget import amount
    from kvfw.core.compose.composition import parse
    from kvfw.core.compress.compressor import compressor
    from kvfw.core.state.observation import Needs
    from kvfw.model.compat.versions import passed
    from kvfw.model.load.load import load_model
    from kvfw.model.session.plan import SessionPlan
    from kvfw.model.session.session import Session, new_cache

    request = json.load(sys.stdin)
    loaded = load_model(request["model"], device=request["device"])
    model, ids = loaded.model, torch.tensor([request["ids"]], device=loaded.model.device)
    by = None
    if request["compose"] is not None:
        by = compressor(parse(request["compose"]), amount(ratio=request["ratio"]), sinks=SINKS, recent=RECENT)
    chunk = request["chunk"] or ids.shape[1]

    def run(tokens: "torch.Tensor") -> "Session":
        plan = SessionPlan(
            needs=by.needs if by is not None else Needs(),
            sinks=SINKS,
            recent=RECENT,
            compressor=by,
            prompt_tokens=tokens.shape[1],
            vocabulary=loaded.tokenizer,
        )
        session = Session(model, new_cache(model), plan)
        with torch.inference_mode(), session.running():
            for part in torch.split(tokens, chunk, dim=1):
                model(input_ids=part, **passed(model, session.cache), use_cache=True, logits_to_keep=1)
        return session

    run(ids[:, :200])  # libraries allocate what they keep for good in the first call
    with Resident(model.device) as held:
        session = run(ids)
    layers = session.cache.compressed_layers()
    states = [layer.state for layer in layers]
    one = states[0]
    per_slot = (one.keys.shape[-1] + one.values.shape[-1]) * one.keys.element_size()
    peak = Peak(
        peak_bytes=held.peak_bytes,
        kv_bytes=sum(layer.kv_bytes for layer in layers),
        expected_kv_bytes=sum(int(state.valid.sum()) for state in states) * per_slot,
        layer_bytes=ids.shape[1] * one.keys.shape[1] * per_slot,
    )
    print(json.dumps(asdict(peak)))


if __name__ == "__main__":
    _child()
