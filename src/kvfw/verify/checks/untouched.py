"""Whether a part wrote to what it was given."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kvfw.verify.findings.verdict import PASSED, Failed, Verdict


def untouched(call: Callable[[], object], given: Mapping[str, Tensor]) -> Verdict:
    """Copies the tensors, makes the call and looks whether they are what they were."""
    copies = {name: part.clone() for name, part in given.items()}
    call()
    touched = [name for name, part in given.items() if not torch.equal(part, copies[name])]
    return Failed("arguments that nobody writes to", f"changed: {', '.join(touched)}") if touched else PASSED
