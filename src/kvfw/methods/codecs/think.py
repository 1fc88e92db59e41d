"""ThinK: key channels that the queries do not look at are dropped (Xu et al. 2024, arXiv 2407.21018)."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from kvfw.core.contracts.codec import CodedHeads, PlainHeads
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs
from kvfw.errors import RunError


class Think(Part):
    """Drops the ``floor(ratio Dk)`` channels c of a head's keys with the least ``mean_q q_c^2 mean_j k_jc^2``.

    The means are over the last ``window`` queries, of all query heads of the KV head, and over its keys: the order is
    that of the norms ``||Q_c|| ||K_c||``, the size of what channel c adds to the logits. Dropped channels are read as
    0, which leaves them out of every product with a query. Values, and the newest ``recent`` keys, stay as they are.

    Bytes: those of the other channels in the model's own dtype, and one (above 256 channels: two) per head and kept
    channel for its place.

    Paper: Xu, Jie, Dong, Wang, Lu, Zhou, Saha, Xiong, Sahoo 2024, ThinK: Thinner Key Cache by Query-Driven Pruning,
    arXiv 2407.21018.

    Deviations: channels are chosen per KV head; the paper's code repeats keys for every query head first, and holds
    them so. Its mean over keys includes the newest ones. There as here keys of later tokens stay as they are until the
    cache is compressed again.
    """

    grows: ClassVar[bool] = False

    ratio: float = Field(0.4, gt=0, lt=1, description="share of the key channels that is dropped")
    recent: int = Field(32, ge=0, description="newest tokens whose keys stay as they are")
    window: int = Field(32, ge=1, description="last queries that decide")

    @property
    def exact(self) -> int:
        """The newest tokens."""
        return self.recent

    @property
    def needs(self) -> Needs:
        """The last queries."""
        return Needs(queries=self.window)

    def encode(self, heads: PlainHeads) -> Mapping[str, Tensor]:
        """The other channels, which they are, and the values."""
        if heads.queries is None or heads.seen is None:
            raise RunError("think looks at the last queries, and none are known here")
        dim = heads.keys.shape[-1]
        queries = heads.queries.float().square() * heads.seen[:, None, :, None]
        energy = queries.sum((1, 2)) * heads.keys.float().square().mean(1)
        dropped = int(self.ratio * dim + 1e-9)
        kept = energy.argsort(dim=-1, stable=True)[:, dropped:].sort(dim=-1).values
        keys = heads.keys.gather(-1, kept[:, None].expand(-1, heads.keys.shape[1], -1))
        return {"keys": keys, "channels": kept.to(torch.uint8 if dim <= 256 else torch.int16), "values": heads.values}

    def decode(self, heads: CodedHeads) -> tuple[Float[Tensor, "R L Dk"], Float[Tensor, "R L Dv"]]:
        """Zeros where channels were dropped."""
        held, values = heads.tensors["keys"], heads.tensors["values"]
        channels = heads.tensors["channels"].long()[:, None].expand_as(held)
        whole = held.new_zeros(*held.shape[:2], heads.dims[0])
        return whole.scatter_(-1, channels, held), values
