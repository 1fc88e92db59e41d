"""Compares next-token distributions."""

from torch import Tensor

from kvfw.core.contracts.metric import Shift


def shift_of(reference: Tensor, logits: Tensor) -> Shift:
    """``KL(reference || logits)`` in nats and whether the largest agree, row by row of two ``[n, V]`` float32 logits.

    Rounding may take a divergence below 0; it is then 0.
    """
    p, q = reference.log_softmax(-1), logits.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1).clamp(min=0)
    return Shift(tuple(kl.tolist()), tuple((reference.argmax(-1) == logits.argmax(-1)).tolist()))
