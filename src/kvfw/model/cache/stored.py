"""Chooses how slots are held."""

from collections.abc import Mapping

from torch import Tensor

from kvfw.core.state.slots import head_sizes
from kvfw.core.state.state import KVState
from kvfw.model.cache.padded import PaddedStorage
from kvfw.model.cache.ragged import NAMES, RaggedStorage
from kvfw.model.cache.storage import Storage


def stored(state: KVState) -> Storage:
    """Holds a state: padded if the heads of each row are equal in size, without padding if not."""
    sizes = head_sizes(state)
    return RaggedStorage.of(state) if bool((sizes != sizes[:, :1]).any()) else PaddedStorage.of(state)


def read(tensors: Mapping[str, Tensor]) -> Storage:
    """Holds what :meth:`Storage.written` returned.

    Raises:
        KeyError, ValueError: a tensor is missing, or they do not fit together.
    """
    if "lengths" in tensors:
        return RaggedStorage.read(tensors)
    state = KVState(**{name: tensors[name] for name in NAMES})
    shapes = {tuple(part.shape[:3]) for part in state.parts}
    if len(shapes) != 1:
        raise ValueError(f"its tensors have shapes that do not fit: {sorted(shapes)}")
    return stored(state)
