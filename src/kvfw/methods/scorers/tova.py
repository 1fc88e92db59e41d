"""TOVA (Oren et al. 2024, arXiv 2401.06104)."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from kvfw.core.ops.attention import window_attention
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class TOVA(Part):
    """Attention of the last token: ``s_j = A_Lj``, mean over all query heads of the layer, the same for every KV head.

    Paper: Oren et al. 2024, Transformers are Multi-State RNNs, arXiv 2401.06104 (Token Omission Via Attention).

    Deviations: the paper evicts one token at every step of decoding; here the prompt is compressed at once
    (``compress_every`` goes on while decoding). Heads are averaged slot by slot: if a cache is compressed again whose
    heads kept different tokens, slots of one number are not one token.
    """

    comparable: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """The last query."""
        return Needs(queries=1)

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """The last query's attention, averaged over the layer's heads."""
        attention = window_attention(obs)
        return attention.mean(1, keepdim=True).expand_as(attention)
