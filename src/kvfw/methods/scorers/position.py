"""The position of a token as its score."""

from jaxtyping import Float
from torch import Tensor

from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class Position(Part):
    """``score_j = p_j``: the later the token, the higher. With top-k this keeps the most recent tokens.

    Source: no paper; the one positional score that ``streaming`` (with top-k) and ``uniform`` (with ``evenly``) share.
    """

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """The slots' positions."""
        return obs.state.positions
