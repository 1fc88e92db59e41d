"""The protocols of parts. Any object with these methods will do; inheriting from :class:`kvfw.Part` gives options."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.rope import Rope
from kvfw.core.state.state import KVState
from kvfw.errors import RunError


@runtime_checkable
class Scorer(Protocol):
    """Gives every slot of a layer a score per KV head; higher means keep."""

    @property
    def needs(self) -> Needs:
        """What must be observed for :meth:`score`."""

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Scores of all slots; those of protected and empty slots are ignored. No NaN."""


@runtime_checkable
class Selector(Protocol):
    """Turns scores and a budget into the tokens to keep exactly.

    It may further have ``needs``: what must be observed for it, besides what the scorer needs; by default nothing.
    """

    def select(
        self,
        scores: Float[Tensor, "B Hkv N"],
        budget: Int64[Tensor, "B Hkv"],
        eligible: Bool[Tensor, "B Hkv N"],
        obs: Observation,
    ) -> Bool[Tensor, "B Hkv N"]:
        """A mask of exactly ``budget`` eligible slots per head; no head has fewer eligible slots than its budget.

        ``obs`` shows the layer's slots, and of what was observed only what the selector declares in its needs.
        """


@runtime_checkable
class Merger(Protocol):
    """Turns many slots into few.

    Those that keep some tokens in their places and fold the others into them keep the heaviest; see
    :mod:`kvfw.core.ops.folding`.
    """

    rows_apart: ClassVar[bool]
    loses_mass: ClassVar[bool]
    """See :class:`kvfw.core.parts.part.Part`."""

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """Merges each head's slots into exactly ``budget``, ordered by position; masses add up to 1 part in 10 000.

        ``budget`` is less than the head's number of valid slots, or 0 if it has none. ``state`` has keys and values
        in float32; ``weights`` are not negative, 0 for empty slots. Merging slots of equal bias must keep that
        bias, unless the merger says ``biases``. Two tokens of equal key and value must become one slot that, with
        the logarithm of its mass as its bias, leaves attention's output as it was.
        """


@runtime_checkable
class Space(Protocol):
    """An invertible transform of keys; merging happens on the transformed keys."""

    rows_apart: ClassVar[bool]
    """See :class:`kvfw.core.parts.part.Part`."""

    def forward(self, state: KVState, rope: Rope | None) -> KVState:
        """The state with its keys in this space; positions, values, masses and biases do not change."""

    def inverse(self, state: KVState, rope: Rope | None) -> KVState:
        """The state with its keys as the model caches them, at the state's positions."""


@dataclass(frozen=True)
class LayerView:
    """A compressed layer, as an allocator sees it.

    Args:
        index: layer index in the model; sliding-window layers and layers of other policies leave gaps.
        kv_heads: number of its KV heads.
        middle: the most slots each row can use in one head.
        obs: what the allocator declared in its needs; None for an allocator of scope ``"shape"``.
        ranking: the scorer it ranks by: its own ``by``, or that of the first stage.
    """

    index: int
    kv_heads: int
    middle: Int64[Tensor, " B"]
    obs: Observation | None = None
    ranking: Scorer | None = None

    def seen(self) -> Observation:
        """The observation; a RunError for an allocator of scope ``"shape"``, which sees none."""
        if self.obs is None:
            raise RunError('an allocator looked at a layer without declaring scope = "layer" or "model"')
        return self.obs

    def scores(self) -> Float32[Tensor, "B Hkv N"]:
        """Scores of the ranking scorer; minus infinity outside the middle."""
        obs = self.seen()
        if self.ranking is None:
            raise RunError("an allocator asked for scores, and neither it nor the first stage names a scorer")
        return obs.score(self.ranking).float().masked_fill(~obs.middle, -torch.inf)


@runtime_checkable
class Allocator(Protocol):
    """Divides a total budget over layers and heads.

    It may further have: ``scope`` (default ``"shape"``; with ``"layer"`` it is called for every layer by itself,
    with ``"model"`` for all layers once their forward is over), ``needs`` (what must be observed for it, besides
    what the ranking scorer needs), ``ranks`` (False: it looks at no scores, only at what it needs itself), ``by``
    (the scorer it ranks by) and ``exact`` (False: the budgets may sum to less).
    """

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> Sequence[Int64[Tensor, "B Hkv"]]:
        """Slots for the middle of every row, per layer and KV head: 0 to ``middle``, in sum ``total``.

        Args:
            total: slots of each row over all layers and heads, at most its ``middle`` per head, so always feasible.
            layers: the compressed layers, in order.
        """


@runtime_checkable
class Refiner(Protocol):
    """Changes values and biases of a layer's finished slots; which slots there are, and their order, stay."""

    @property
    def needs(self) -> Needs:
        """What must be observed for :meth:`refine`."""

    def refine(self, state: KVState, obs: Observation) -> KVState:
        """The compressed ``state`` of the layer that ``obs`` shows, with other values and biases."""
