"""Checks that a part that takes a calibration file learns, and does without the prompt what it learned."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvfw.core.contracts.calibration import CalibratedPart, Piece, read_calibration, to_bytes
from kvfw.core.contracts.parts import LayerView
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, NotApplicable, Verdicts
from kvfw.verify.instruments.observed import observe, random_row, three_rows

#: Pieces of a text: as many as a part may want to hold some out.
PIECES = 6
KINDS = frozenset({Kind.SCORER, Kind.ALLOCATOR})


def _pieces(needs: Needs) -> Iterator[Piece]:
    for number in range(PIECES):
        yield {0: observe([random_row(60, 10 + number)], needs)}


@holds("calibration", "what it learns from a text is the same each time, and takes the place of the prompt", KINDS)
def calibration(subject: Subject) -> Verdicts:
    """Learns twice from random observations, writes a file, reads it, and scores or allocates by it."""
    part = subject.part
    if not isinstance(part, CalibratedPart):
        yield NotApplicable("it takes no calibration file")
        return
    learned, again = (part.calibrate(_pieces(part.calibration_needs)) for _ in range(2))
    if not any(name.startswith("0.") for name in learned):
        yield Failed('tensors by "LAYER.NAME"', f"{sorted(learned)}")
    if learned.keys() != again.keys() or any(not torch.equal(learned[name], again[name]) for name in learned):
        yield Failed("the same tensors from the same text", "others the second time")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learned.safetensors"
        path.write_bytes(to_bytes(type(part).__name__, {}, {}, "", learned))
        read = read_calibration(str(path), type(part).__name__).tensors
        if any(not torch.equal(read[name], learned[name].cpu()) for name in learned):
            yield Failed("what it learned, in the file", "other numbers")
        yield from _used(type(part).model_validate({**dict(part), "file": str(path)}), subject.spec.kind)


def _used(part: Any, kind: Kind) -> Verdicts:
    """The part with its file, on prompts it has not learned from."""
    rows = three_rows()
    if kind is Kind.ALLOCATOR:
        views = [LayerView(0, 2, torch.tensor([40, 30, 20]))]
        total = torch.tensor([40, 31, 10])
        seen = torch.cat(list(part.allocate(total, views)), 1).sum(1)
        if not torch.equal(seen, total):
            yield Failed(f"budgets in sum {total.tolist()}, from the file alone", f"{seen.tolist()}")
        return
    together: Tensor = part.score(whole := observe(rows, part.needs))
    if not bool(torch.isfinite(together[whole.middle]).all()):
        yield Failed("finite scores by the file", "scores that are not")
    for index, row in enumerate(rows):
        alone: Tensor = part.score(observe([row], part.needs))[0]
        if not torch.allclose(together[index, :, -row.length :], alone, rtol=1e-4, atol=1e-5):
            yield Failed("scores by the file that other rows do not change", f"others for row {index}")
