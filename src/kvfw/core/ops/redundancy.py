"""How much every key repeats others."""

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

#: Elements of the largest block of cosines held at once.
BLOCK_ELEMENTS = 2**19


@torch.no_grad()
def redundancy(
    keys: Float[Tensor, "B Hkv N D"], valid: Bool[Tensor, "B Hkv N"], threshold: float
) -> Float32[Tensor, "B Hkv N"]:
    """``softmax_j(mean over i of c_ij)``, with ``c_ij`` the cosine of keys i and j of a head, and 0 in two places.

    ``c_ii`` is 0, and so is ``c_ij`` for the latest j whose cosine with i is above the threshold: of keys that repeat
    each other the latest is not held to do so. Empty slots get 0. O(N^2 D) time, O(block x N) memory; each row and
    head by itself.
    """
    found = keys.new_zeros(keys.shape[:3], dtype=torch.float32)
    for row, head in torch.cartesian_prod(*map(torch.arange, keys.shape[:2])).tolist():
        inside = valid[row, head]
        x = torch.nn.functional.normalize(keys[row, head, inside].float(), dim=-1)
        total = x.new_zeros(len(x))
        for start, some in _blocks(x):
            cosines = some @ x.mT
            cosines.diagonal(start).zero_()
            near = cosines > threshold
            latest = len(x) - 1 - near.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
            # Where no cosine is above the threshold, the place found means nothing.
            kept = cosines.gather(1, latest).masked_fill(near.any(-1, keepdim=True), 0.0)
            total += cosines.scatter(1, latest, kept).sum(0)
        found[row, head, inside] = (total / max(len(x), 1)).softmax(-1)
    return found


def _blocks(x: Float32[Tensor, "n D"]) -> list[tuple[int, Float32[Tensor, "m D"]]]:
    size = max(1, BLOCK_ELEMENTS // max(len(x), 1))
    return [(start, x[start : start + size]) for start in range(0, len(x), size)]
