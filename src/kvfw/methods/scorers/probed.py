"""Attention from a probe, as Attention Matching ranks keys by it (Zweiger et al. 2026, arXiv 2602.16284)."""

from typing import Annotated, ClassVar, Final, Literal

from jaxtyping import Float
from pydantic import Field, field_validator
from torch import Tensor

from kvfw.core.parts.files import FileOption
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Columns, Needs, Observation, probe_name

#: How attention is reduced over the probe's queries, for every option.
OVER: Final[dict[str, Literal["sum", "max", "square"]]] = {"rms": "square", "mean": "sum", "max": "max"}


class AttentionFromProbe(Part):
    """Attention that a token receives from all tokens of a probe: root mean square, mean or largest.

    ``s_j`` is ``sqrt(sum_i A_ij^2)`` for ``rms``, ``sum_i A_ij`` for ``mean`` (both up to a factor that all tokens
    share) and ``max_i A_ij`` for ``max``, over the probe's tokens i and the query heads of the group.

    Paper: Zweiger, Fu, Guo, Kim 2026, Attention Matching, arXiv 2602.16284: its choice of keys by highest attention.

    Deviations: the paper's queries come from several kinds of probes and from the prompt; here from one probe.
    """

    comparable: ClassVar[bool] = True

    reduce: Literal["rms", "mean", "max"] = Field("rms", description="over the probe's tokens and the group's heads")
    probe: Annotated[str, FileOption(("repeat",))] = Field(
        "repeat", description="what the model reads: repeat the prompt, or a text file's path"
    )

    _not_the_prompt = field_validator("probe")(probe_name)

    @property
    def _columns(self) -> Columns:
        return Columns(over=OVER[self.reduce], heads="each", source=self.probe)

    @property
    def needs(self) -> Needs:
        """Attention received from the probe."""
        return Needs(columns=frozenset({self._columns}))

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """The reduced attention; every slot's."""
        received = obs.column(self._columns)
        group = received.view(received.shape[0], obs.state.keys.shape[1], -1, received.shape[-1])
        if self.reduce == "max":
            return group.amax(2)
        return group.sum(2).sqrt() if self.reduce == "rms" else group.sum(2)
