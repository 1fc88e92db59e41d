"""Runs the model over one trial's cache for metrics."""

from collections.abc import Sequence

from torch import Tensor

from kvfw.core.contracts.metric import Missing
from kvfw.core.state.state import KVState
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.load.load import LoadedModel
from kvfw.model.load.sentence import SentenceEncoder
from kvfw.model.run import decode
from kvfw.model.run.decode import Forced
from kvfw.model.run.prefill import Prefill


class CacheEngine:
    """A :class:`kvfw.core.contracts.metric.Engine`. Every measurement gets a fresh cache of the same states.

    Args:
        loaded: the language model.
        filled: the prefill the states come from.
        states: the trial's slots by layer.
        after: tokens appended uncompressed: the question of a question-agnostic run.
        encoder: sentence embeddings.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        filled: Prefill,
        states: dict[int, KVState],
        after: Sequence[int],
        encoder: SentenceEncoder,
    ) -> None:
        self.model, self.filled, self.states = loaded.model, filled, states
        self.after, self.encoder = tuple(after), encoder
        self._forced: dict[tuple[int, ...], Forced] = {}

    def started(self) -> tuple[CompressedCache, Tensor]:
        """A new cache holding the whole prompt, and the logits ``[1, V]`` of the first response token."""
        cache = self.filled.cache_of(self.states)
        if not self.after:
            return cache, self.filled.logits
        return cache, decode.feed(self.model, cache, self.after)

    def nll(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Teacher-forced negative log-likelihoods."""
        return self._answer(tokens).nll

    def hidden(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Mean final hidden state."""
        hidden = self._answer(tokens).hidden
        return () if hidden is None else tuple(hidden.tolist())

    def _answer(self, tokens: tuple[int, ...]) -> Forced:
        if tokens not in self._forced:
            cache = self.filled.cache_of(self.states)
            self._forced[tokens] = decode.teacher_forced(self.model, cache, tokens, before=self.after)
        return self._forced[tokens]

    def similarity(self, text: str, other: str) -> float | Missing:
        """Cosine of sentence embeddings."""
        return self.encoder.similarity(text, other)

    def tokens_per_second(self) -> float:
        """Decode speed."""
        cache, logits = self.started()
        return decode.tokens_per_second(self.model, cache, logits)
