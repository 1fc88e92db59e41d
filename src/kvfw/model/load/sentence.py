"""Sentence embeddings from the embedded encoder."""

from functools import cached_property
from typing import Any

from kvfw.core.contracts.metric import Missing
from kvfw.errors import FetchError
from kvfw.model.compat.progress_bars import without_bars
from kvfw.model.embedded.folders import ensure_embedded

ENCODER = "minilm-l6"


class SentenceEncoder:
    """all-MiniLM-L6-v2, loaded at the first text; if that fails, every answer is ``Missing`` with the reason."""

    @cached_property
    def _model(self) -> Any:
        try:
            folder = ensure_embedded(ENCODER)
        except FetchError as error:
            return Missing(f"no sentence encoder: {error}")
        from sentence_transformers import SentenceTransformer

        # On the CPU: the texts are few and short, and the language model keeps its device to itself.
        with without_bars():
            return SentenceTransformer(str(folder), device="cpu", local_files_only=True)

    def similarity(self, text: str, other: str) -> float | Missing:
        """Cosine of two texts' embeddings, -1 to 1; exactly 1 for equal texts."""
        if isinstance(self._model, Missing):
            return self._model
        if text == other:
            return 1.0
        a, b = self._model.encode([text, other], normalize_embeddings=True, show_progress_bar=False)
        return float(min(1.0, a @ b))
