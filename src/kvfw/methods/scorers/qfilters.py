"""Q-Filters (Godey et al. 2025, arXiv 2503.02812), from the prompt's own queries."""

from jaxtyping import Float
from torch import Tensor

from kvfw.core.ops.query_model import main_directions
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class QFilters(Part):
    """Keys that lie in the direction of the queries: ``s_j = u.k_j``.

    ``u`` is the first right singular vector of the rotated queries, not centred, pointing to where most queries lie;
    mean over the query heads of a KV head.

    Paper: Godey et al. 2025, Q-Filters: Leveraging QK Geometry for Efficient KV Cache Compression, arXiv 2503.02812.

    Deviations: the paper calibrates ``u`` once per model on 3000 queries of other texts; here it comes from the prompt,
    from moments of its queries before RoPE, as if these were distributed alike at all its positions. ``u`` points to
    the side of the queries' mean (paper: of their majority). The paper always keeps the last 64 tokens: set ``recent``.
    Products of different heads have no common unit.
    """

    @property
    def needs(self) -> Needs:
        """Moments of the queries before RoPE."""
        return Needs(moments=frozenset({0}))

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Products with the main direction."""
        keys = obs.state.keys.float().masked_fill(~obs.state.valid[..., None], 0.0)
        directions = main_directions(obs.query_moments(0), obs)
        filters = directions.reshape(len(keys), keys.shape[1], -1, keys.shape[-1]).mean(2)
        return (keys * filters[:, :, None]).sum(-1)
