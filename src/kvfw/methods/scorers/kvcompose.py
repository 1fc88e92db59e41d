"""KVCompose (Akulov et al. 2025, arXiv 2509.05165)."""

from typing import ClassVar, Literal

from jaxtyping import Float
from pydantic import Field, field_validator
from torch import Tensor

from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Columns, Needs, Observation, probe_name


class KVCompose(Part):
    """The largest attention a token receives from a probe, averaged over the heads of its group and of its layer.

    ``m_hj = mean over the query heads of KV head h of max over the probe's tokens i of A_ij`` and ``s_hj = m_hj + mean
    over h of m_hj``: a token that all heads look at is worth more. ``reduce=sum`` sums over the probe's tokens;
    ``across=false`` leaves the mean over KV heads out.

    Paper: Akulov et al. 2025, KVCompose: Efficient Structured KV Cache Compression with Composite Tokens, arXiv
    2509.05165. The paper's budgets are ``kvcompose@composite``, its variant without structure ``kvcompose@global``.

    Deviations: the probe asks the model to repeat the prompt, in kvfw's words, where the paper reads the prompt, or
    prompts of the task, once more. The paper's mean over the probe's tokens is a sum, which ranks alike.
    """

    comparable: ClassVar[bool] = True

    probe: str = Field("repeat", description="what the model reads: repeat the prompt, or a text file's path")
    reduce: Literal["max", "sum"] = Field("max", description="over the probe's tokens")
    across: bool = Field(True, description="add the mean over the layer's KV heads")

    _not_the_prompt = field_validator("probe")(probe_name)

    @property
    def _columns(self) -> Columns:
        return Columns(over=self.reduce, heads="each", source=self.probe)

    @property
    def needs(self) -> Needs:
        """Attention from the probe."""
        return Needs(columns=frozenset({self._columns}))

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Attention received from the probe, averaged."""
        received = obs.column(self._columns)
        scores = received.view(len(received), obs.state.keys.shape[1], -1, received.shape[-1]).mean(2)
        return scores + scores.mean(1, keepdim=True) if self.across else scores
