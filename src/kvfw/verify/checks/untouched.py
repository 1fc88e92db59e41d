"""Checks that a part did not write to its arguments."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kvfw.verify.findings.verdict import Failed, Verdicts


def untouched(call: Callable[[], object], given: Mapping[str, Tensor]) -> Verdicts:
    """Makes the call and compares the tensors with copies taken before it."""
    copies = {name: part.clone() for name, part in given.items()}
    call()
    touched = [name for name, part in given.items() if not torch.equal(part, copies[name])]
    if touched:
        yield Failed("arguments that nobody writes to", f"changed: {', '.join(touched)}")
