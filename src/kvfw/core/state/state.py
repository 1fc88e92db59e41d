"""The state of one layer's cache, which every operation maps to a new state."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor


@dataclass(frozen=True)
class KVState:
    """The slots of one layer's cache. Never mutated: every operation returns a new state.

    Slots are ordered by position per head (equal positions: exact tokens first). A head with fewer slots than the
    widest one carries empty slots on the left.

    Args:
        keys: as cached, that is rotated (inside a space: in that space).
        values: as cached.
        positions: the position each key is rotated to; fractional for merged slots; -1 for an empty slot.
        mass: number of prompt tokens the slot stands for: exactly 1 for an exact token, more for a merged slot, 0 for
            an empty slot or padding.
        bias: added to the slot's attention logit: minus infinity for empty slots and padding, else 0 unless a stage
            sets ``log mass``.
    """

    keys: Float[Tensor, "B Hkv N Dk"]
    values: Float[Tensor, "B Hkv N Dv"]
    positions: Float32[Tensor, "B Hkv N"]
    mass: Float32[Tensor, "B Hkv N"]
    bias: Float32[Tensor, "B Hkv N"]

    @property
    def valid(self) -> Bool[Tensor, "B Hkv N"]:
        """Slots that stand for at least one token."""
        return self.mass > 0

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Keys, values, positions, masses and biases."""
        return self.keys, self.values, self.positions, self.mass, self.bias

    @property
    def width(self) -> int:
        """N: slots per head, empty ones included."""
        return self.keys.shape[2]

    @property
    def kv_bytes(self) -> int:
        """Bytes that keys and values hold in memory (the whole storage, even if the tensor is a view of part of it)."""
        return self.keys.untyped_storage().nbytes() + self.values.untyped_storage().nbytes()

    @property
    def overhead_bytes(self) -> int:
        """Bytes of positions, masses and biases."""
        return sum(part.untyped_storage().nbytes() for part in (self.positions, self.mass, self.bias))


def exact_state(
    keys: Float[Tensor, "B Hkv N Dk"],
    values: Float[Tensor, "B Hkv N Dv"],
    positions: Float32[Tensor, "B N"],
    real: Bool[Tensor, "B N"],
) -> KVState:
    """The uncompressed state of tokens as a model cached them.

    Args:
        keys, values: the cached tensors; not copied.
        positions: position of every token.
        real: False for padding, which becomes empty slots (position -1, mass 0, bias minus infinity).
    """
    shape = (-1, keys.shape[1], -1)
    mass = real.to(torch.float32)
    bias = torch.zeros_like(mass).masked_fill(~real, -torch.inf)
    return KVState(
        keys=keys,
        values=values,
        positions=positions.masked_fill(~real, -1.0)[:, None].expand(shape),
        mass=mass[:, None].expand(shape),
        bias=bias[:, None].expand(shape),
    )
