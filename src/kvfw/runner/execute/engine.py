"""Runs the model over one trial's cache for metrics."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from kvfw.core.contracts.metric import Missing, Shift
from kvfw.core.state.state import KVState
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.report import CacheReport
from kvfw.model.load.load import LoadedModel
from kvfw.model.load.sentence import SentenceEncoder
from kvfw.model.run import decode
from kvfw.model.run.decode import Forced, Written
from kvfw.model.run.prefill import Prefill
from kvfw.model.session.plan import SessionPlan


class CacheEngine:
    """A :class:`kvfw.core.contracts.metric.Engine`. Every measurement gets a fresh cache of the same states.

    Args:
        loaded: the language model.
        filled: the prefill the states come from.
        states: the trial's slots by layer.
        after: tokens appended uncompressed: the question of a question-agnostic run.
        encoder: sentence embeddings.
        plan: how the cache is compressed again while decoding, if it is.
        kept: the compressed cache, where it is more than its states: it is coded, or such a plan goes on with it.
        reference: the engine over the full cache, and its response; None: this is that engine.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        filled: Prefill,
        states: dict[int, KVState],
        after: Sequence[int],
        encoder: SentenceEncoder,
        plan: SessionPlan | None = None,
        kept: CompressedCache | None = None,
        reference: "tuple[CacheEngine, tuple[int, ...]] | None" = None,
    ) -> None:
        self.model, self.filled, self.states = loaded.model, filled, states
        self.after, self.encoder = tuple(after), encoder
        self.plan, self._kept, self._reference = plan, kept, reference
        self._forced: dict[tuple[int, ...], Forced] = {}

    def started(self) -> tuple[CompressedCache, Tensor]:
        """A new cache holding the whole prompt, and the logits ``[1, V]`` of the first response token."""
        cache = self._cache()
        if not self.after:
            return cache, self.filled.logits
        return cache, decode.feed(self.model, cache, self.after)

    def nll(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Teacher-forced negative log-likelihoods."""
        return self._answer(tokens).nll

    def shift(self, tokens: tuple[int, ...]) -> Shift:
        """Next-token distributions against the full cache's."""
        forced = self._answer(tokens)
        if self._reference is None:
            return Shift((0.0,) * len(forced.nll), (True,) * len(forced.nll))
        found = forced.shift or self._force(tokens, compared=True).shift
        assert found is not None
        return found

    def hidden(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Mean final hidden state."""
        hidden = self._answer(tokens).hidden
        return () if hidden is None else tuple(hidden.tolist())

    def _answer(self, tokens: tuple[int, ...]) -> Forced:
        if tokens not in self._forced:
            # Along the full cache's response distributions are compared at once: logits are too large to keep per row.
            self._force(tokens, compared=self._reference is not None and tokens == self._reference[1])
        return self._forced[tokens]

    def _force(self, tokens: tuple[int, ...], *, compared: bool) -> Forced:
        whole = self._reference
        against = whole[0]._answer(tokens).logits if whole is not None and compared else None
        forced = decode.teacher_forced(
            self.model,
            self._cache(),
            tokens,
            before=self.after,
            plan=self.plan,
            keep_logits=whole is None,
            against=against,
        )
        if compared and against is None:
            forced = replace(forced, shift=Shift())  # a text of one token
        self._forced[tokens] = forced
        return forced

    def similarity(self, text: str, other: str) -> float | Missing:
        """Cosine of sentence embeddings."""
        return self.encoder.similarity(text, other)

    def tokens_per_second(self) -> float:
        """Decode speed."""
        logits, cache = self.filled.logits, self._cache()
        return decode.tokens_per_second(self.model, cache, logits, before=self.after, plan=self.plan)

    def written(self, max_new_tokens: int) -> tuple[Written, CacheReport]:
        """The greedy response with the bytes held after forwards, the last one at least; and the cache before it."""
        cache, logits = self.started()
        report = cache.report()  # before decoding, which grows the cache
        if self.plan is None:
            tokens = decode.greedy(self.model, cache, logits, max_new_tokens)
            return Written(tokens, (report.kv_bytes, cache.held_bytes())), report
        logits, cache = self.filled.logits, self._cache()
        again = decode.greedy_recompressed(self.model, cache, self.plan, logits, max_new_tokens, before=self.after)
        return again, report

    def _cache(self) -> CompressedCache:
        return self.filled.cache_of(self.states) if self._kept is None else self._kept.copy()
