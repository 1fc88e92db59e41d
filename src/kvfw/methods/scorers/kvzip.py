"""KVzip and KVzip+ (Kim et al. 2025, arXiv 2505.23416)."""

from typing import Annotated, ClassVar

from jaxtyping import Float
from pydantic import Field, field_validator
from torch import Tensor

from kvfw.core.ops.projection import projected_norms
from kvfw.core.parts.files import FileOption
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Columns, Needs, Observation, probe_name


class KVzip(Part):
    """The largest attention a token receives while the model repeats the prompt.

    ``s_j = max over query heads of the group, max over the probe's tokens i, of A_ij``; with ``plus=true``
    ``A_ij ||W_o^h v_j||_2 / ||x_i||_2`` in place of ``A_ij``: the size of the change that token j makes to the residual
    ``x_i`` that the layer's attention reads.

    Paper: Kim et al. 2025, KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction, arXiv 2505.23416;
    KVzip+: Jegou and Jeblick 2026, KVzap, arXiv 2601.07891. With ``@global`` it is the paper's method, one threshold
    over all layers and heads; alone, every head keeps the same number of slots.

    Deviations: the paper's replay of a part of the context sees only that part of the cache and renormalises its
    attention over it, here it sees the whole cache, so scores are the model's own attention. The wording of the
    requests is kvfw's.
    """

    comparable: ClassVar[bool] = True

    plus: bool = Field(False, description="weigh attention by its effect on the residual stream")
    probe: Annotated[str, FileOption(("repeat",))] = Field(
        "repeat", description="what the model reads: repeat the prompt, or a text file's path"
    )

    _not_the_prompt = field_validator("probe")(probe_name)

    @property
    def _columns(self) -> Columns:
        return Columns(over="max", heads="each", per_norm=self.plus, source=self.probe)

    @property
    def needs(self) -> Needs:
        """Largest attention from the probe; the output projection for ``plus``."""
        return Needs(columns=frozenset({self._columns}), projection=self.plus)

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Largest attention received from the probe."""
        received = obs.column(self._columns)
        heads = obs.state.keys.shape[1]
        by_group = received.view(received.shape[0], heads, -1, received.shape[-1])
        if self.plus:
            by_group = by_group * projected_norms(obs.state.values, obs.projection())
        return by_group.amax(2)
