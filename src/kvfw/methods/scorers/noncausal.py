"""Non-causal attention, from Compactor (Chari and Van Durme 2025, arXiv 2507.08143)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field, field_validator
from torch import Tensor

from kvfw.core.ops.attention import odd_kernel, pool_middle
from kvfw.core.ops.chunk_attention import chunk_columns
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import ALL, Needs, Observation


class NonCausal(Part):
    """Attention from all queries of a token's chunk, as if earlier tokens could see later ones, times the value's norm.

    ``c_j = sum over the queries i of j's chunk of softmax(Q K^T)_ij``, mean over the query heads of a KV head; the
    score is ``c_j ||v_j||_2``, pooled (average) along the sequence. No token profits from being seen by more queries.

    Paper: Chari and Van Durme 2025, Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate Leverage
    Scores, arXiv 2507.08143; chunk and kernel are those of kvpress's implementation, which is by the same author.

    Deviations: products are not scaled, as in both implementations of the author, which sharpens the softmax;
    ``scaled=true`` takes the model's scale. Protected tokens take no part, nor does padding, which kvpress lets take
    part in the last chunk. z-scores are left to ``compactor``: the order of a head's tokens is the same.
    """

    comparable: ClassVar[bool] = True

    chunk: int = Field(256, ge=1, description="tokens in a chunk")
    kernel: int = Field(3, ge=1, description="pooling width in tokens, odd")
    scaled: bool = Field(False, description="scale query-key products as the model does")

    _odd = field_validator("kernel")(odd_kernel)

    @property
    def needs(self) -> Needs:
        """All queries."""
        return Needs(queries=ALL)

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Pooled attention times norms of every slot of the middle, 0 elsewhere."""
        received = chunk_columns(obs, self.chunk, obs.scale if self.scaled else 1.0)
        norms = torch.linalg.vector_norm(obs.state.values.float(), dim=-1)
        return pool_middle(received * norms, obs, self.kernel, "avg")
