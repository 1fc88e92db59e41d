"""TurboQuant: a random rotation, then the best scalar codes (Zandieh et al. 2025, arXiv 2504.19874)."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from kvfw.core.contracts.codec import CodedHeads, PlainHeads
from kvfw.core.ops.packing import halved, packed, unpacked
from kvfw.core.ops.sphere import rotation, sphere_codebook
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs


class Turbo(Part):
    """Keys and values in ``bits`` bits a number and one norm a vector, without scales and without calibration.

    ``R x / ||x||`` for a random rotation R is a random point on the sphere whatever x is, so that one codebook serves
    all coordinates: ``code_c`` is the nearest of the ``2^bits`` numbers that code a coordinate of such a point with the
    least mean square error. Read as ``||x|| R^T codebook[code]``. Expected square of the relative error: 0.36, 0.117,
    0.03, 0.009 for 1 to 4 bits.

    Bytes of a vector of D numbers: ``D bits / 8`` and 2 for its norm. R is made from seed and layer, and not stored.

    Paper: Zandieh, Daliri, Hadian, Mirrokni 2025, TurboQuant: Online Vector Quantization with Near-optimal Distortion
    Rate, arXiv 2504.19874: its quantiser of least mean square error (Q_mse).

    Deviations: its second quantiser, which spends one bit on a sketch of the error so that inner products come without
    bias, is left out, as in inference engines; so are the channels that it codes with more bits to arrive at 2.5 and
    3.5. Tokens are coded many at a time, so that up to 64 newest ones are still as they were.
    """

    bits: int = Field(4, ge=1, le=4, description="bits of a code")
    seed: int = Field(0, ge=0, lt=2**31, description="another seed, other rotations")

    @property
    def error(self) -> float:
        """The paper's bound, ``sqrt(3) pi / 2 * 4^-bits`` for the square."""
        return float((3**0.5 * torch.pi / 2 * 4.0**-self.bits) ** 0.5)

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def encode(self, heads: PlainHeads) -> Mapping[str, Tensor]:
        """Norms and codes of both."""
        found: dict[str, Tensor] = {}
        for name, x in (("key", heads.keys.float()), ("value", heads.values.float())):
            norm = x.norm(dim=-1, keepdim=True)
            turned = _turned(x / norm.clamp(min=1e-30), self._rotation(heads.layer, x.shape[-1]).mT)
            codebook = sphere_codebook(x.shape[-1], self.bits).to(x.device)
            codes = torch.bucketize(turned, (codebook[1:] + codebook[:-1]) / 2)
            found |= {f"{name}_codes": packed(codes.to(torch.uint8), self.bits), f"{name}_norm": halved(norm)}
        return found

    def decode(self, heads: CodedHeads) -> tuple[Float[Tensor, "R L Dk"], Float[Tensor, "R L Dv"]]:
        """The codebook's numbers, turned back and as long as the vectors were."""
        keys, values = (self._read(heads, name, dim) for name, dim in zip(("key", "value"), heads.dims, strict=True))
        return keys, values

    def _read(self, heads: CodedHeads, name: str, dim: int) -> Tensor:
        norm = heads.tensors[f"{name}_norm"].float()
        codes = unpacked(heads.tensors[f"{name}_codes"], self.bits, dim)
        turned = sphere_codebook(dim, self.bits).to(norm.device)[codes.int()]
        return (_turned(turned, self._rotation(heads.layer, dim)) * norm).to(heads.dtype)

    def _rotation(self, layer: int, dim: int) -> Tensor:
        return rotation(dim, (self.seed << 16) + layer)


def _turned(x: Tensor, by: Tensor) -> Tensor:
    """``x @ by``, head by head: how a product rounds must not depend on other heads."""
    by = by.to(x.device)
    return torch.stack([head @ by for head in x])
