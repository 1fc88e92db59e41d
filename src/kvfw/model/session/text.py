"""Features of the prompt's tokens that come from their ids."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvfw.core.state.lexical import Vocabulary, rare_tokens, token_types
from kvfw.core.state.observation import Needs
from kvfw.errors import UnsupportedError


@dataclass(frozen=True)
class TextFeatures:
    """Token ids, lexical features and token types, each ``[B, N]``; None where not needed."""

    ids: Tensor | None = None
    lexical: Tensor | None = None
    types: Tensor | None = None

    def emptied(self, valid: Tensor) -> "TextFeatures":
        """The same with -1 for the ids and types of padding, where ``valid`` ``[B, N]`` is False."""
        ids = None if self.ids is None else self.ids.masked_fill(~valid, -1)
        types = None if self.types is None else self.types.masked_fill(~valid, -1)
        return TextFeatures(ids, self.lexical, types)

    def closed(self, close: Callable[[Tensor], Tensor]) -> "TextFeatures":
        """The same without padding between the tokens, which ``close`` takes out."""
        return TextFeatures(
            *(None if part is None else close(part).to(part.dtype) for part in (self.ids, self.lexical, self.types))
        )


def text_features(ids: Tensor | None, needs: Needs, vocabulary: Vocabulary | None) -> TextFeatures:
    """What is needed of the tokens ``ids`` ``[B, N]``.

    Raises:
        UnsupportedError: the ids are not known, or types or lexical features are needed without a vocabulary.
    """
    if not needs.text:
        return TextFeatures()
    if ids is None or (vocabulary is None and (needs.lexical or needs.token_types)):
        raise UnsupportedError("this composition looks at the prompt's text; call the model with input_ids")
    lexical = types = None
    if needs.lexical and vocabulary is not None:
        rows = [rare_tokens(vocabulary, row) for row in ids.tolist()]
        lexical = torch.tensor(rows, dtype=torch.float32, device=ids.device)
    if needs.token_types and vocabulary is not None:
        kinds = [[int(kind) for kind in token_types(vocabulary, row)] for row in ids.tolist()]
        types = torch.tensor(kinds, dtype=torch.int8, device=ids.device)
    return TextFeatures(ids if needs.ids else None, lexical, types)
