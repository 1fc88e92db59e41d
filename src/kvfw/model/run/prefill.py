"""One observed prefill of a prompt, from which any number of compressed caches can be made."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from kvfw.core.compress.allocation import mean_budgets, scored_budgets
from kvfw.core.compress.compressor import Compressor, LayerWork
from kvfw.core.compress.scores import Scores
from kvfw.core.state.lexical import Vocabulary
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.slots import stack
from kvfw.core.state.state import KVState
from kvfw.errors import UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.captured import Captured
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.compat.clock import clock_s
from kvfw.model.compat.versions import passed
from kvfw.model.run.parallel import map_layers
from kvfw.model.session.plan import SessionPlan
from kvfw.model.session.probing import probed
from kvfw.model.session.session import Session, new_cache

#: Layers compressed together. On two threads that makes a hybrid with E-Means a tenth faster; three are no faster.
TOGETHER = 2


@dataclass(frozen=True)
class Prefill:
    """A prompt after its forward.

    Args:
        cache: the full cache; never changed.
        observations: what scorers may see, by layer index, for every compressible layer.
        logits: ``[B, V]`` float32, of the prompt's last token.
        tokens: length of the prompt.
        seconds: duration of the forward.
        probe_seconds: duration of the probes.
    """

    cache: CompressedCache
    observations: dict[int, Observation]
    logits: Tensor
    tokens: int
    seconds: float
    probe_seconds: float = 0.0
    _scores: dict[int, Scores] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_scores", {index: Scores(obs) for index, obs in self.observations.items()})

    def unscored(self) -> "Prefill":
        """The same prompt without cached scores."""
        return replace(self)

    def full_states(self) -> dict[int, KVState]:
        """The prompt's slots by layer, uncompressed."""
        return {index: obs.state for index, obs in self.observations.items()}

    def compressed_states(self, compressor: Compressor) -> dict[int, KVState]:
        """The prompt's slots by layer, compressed as by ``attach``; compositions share each scorer's scores.

        Raises:
            BudgetError: the prompt is too short for the compressor's amount.
            RunError: a part or the allocator broke its contract.
        """
        work = self._work(compressor)
        groups = [work[i : i + TOGETHER] for i in range(0, len(work), TOGETHER)]
        states = chain.from_iterable(map_layers(compressor.compress_layers, groups, self.logits.device))
        done = dict(zip((each.obs.layer for each in work), states, strict=True))
        return {index: done.get(index, obs.state) for index, obs in self.observations.items()}

    def _work(self, compressor: Compressor) -> list[LayerWork]:
        """The layers to compress, with their budgets."""
        tokens = torch.tensor([self.tokens])
        heads = {index: obs.state.keys.shape[1] for index, obs in self.observations.items()}
        each, middle = compressor.middle_slots(tokens), compressor.middle(tokens)
        budgets, work = mean_budgets(compressor, each, middle, heads), list[LayerWork]()
        for rule, layers in compressor.pools(heads):
            scores = {index: self._scores[index] for index in layers}
            found = scored_budgets(rule, {index: budgets[index] for index in layers}, scores)
            work += [
                LayerWork(self.observations[i], found[i].to(self.observations[i].state.keys.device), self._scores[i])
                for i in layers
            ]
        return work

    def cache_of(self, *rows: dict[int, KVState]) -> CompressedCache:
        """A new, independent cache with these states, a row each, and copies of the sliding-window layers."""
        states = {i: stack([row[i] for row in rows]) for i in rows[0]}
        return self._cache({i: CompressedLayer.of_state(x, self.tokens) for i, x in states.items()}, len(rows))

    def _cache(self, layers: Mapping[int, CompressedLayer], rows: int) -> CompressedCache:
        cache = CompressedCache([layers.get(i) or _repeated(x, rows) for i, x in enumerate(self.cache.layers)])
        cache.made_for, cache.adapters = self.cache.made_for, self.cache.adapters
        return cache

    def to_be_continued(self, plan: SessionPlan) -> CompressedCache:
        """A cache of the compressed prompt with all that the plan's later compressions need, as ``attach`` leaves it.

        Raises as :meth:`compressed_states`.
        """
        by = plan.compressor
        assert by is not None
        done = {each.obs.layer: by.compress_with_sums(each.obs, each.budget, each.scores) for each in self._work(by)}
        layers = {}
        for index, obs in self.observations.items():
            state, sums = done.get(index, (obs.state, {}))
            known = self._captured(obs.narrowed(by.rule(index).needs), by) if index in done else self._captured()
            layers[index] = self._held(index, state, replace(known, sums=sums), by)
        return self._cache(layers, 1)

    def _captured(self, obs: Observation | None = None, by: Compressor | None = None) -> Captured:
        """What a layer remembers of the prompt right after its compression, of a layer that ``obs`` shows."""
        tokens = torch.tensor([self.tokens], device=self.logits.device)
        known = Captured(tokens, tokens.to(torch.float32), self.tokens, compressed=True, compressed_at=self.tokens)
        if obs is None or by is None:
            return known
        return replace(
            known,
            moved=by.moves_positions,
            queries=obs.queries,
            query_positions=obs.query_positions,
            moments=obs.moments,
            inv_freq=None if obs.rope is None else obs.rope.inv_freq,
        )

    def full(self) -> CompressedCache:
        """A cache of the whole prompt, uncompressed."""
        return self.cache_of(self.full_states())

    def compressed(self, compressor: Compressor) -> CompressedCache:
        """A cache of the compressed prompt."""
        states = self.compressed_states(compressor)
        return self._cache({i: self._held(i, x, self.tokens, compressor) for i, x in states.items()}, 1)

    def _held(self, index: int, state: KVState, seen: int | Captured, by: Compressor) -> CompressedLayer:
        """A layer with its compressed slots, coded if the composition asks for it."""
        layer, coder = CompressedLayer.of_state(state, seen), by.rule(index).coder(index)
        if coder is not None:
            layer.hold(state, coder, self.observations[index])
        return layer


def _repeated(layer: CacheLayerMixin, rows: int) -> CacheLayerMixin:
    """A copy of a one-row layer with its row repeated."""
    copied: Any = copy.copy(layer)
    if rows > 1:
        copied.batch_repeat_interleave(rows)
    repeated: CacheLayerMixin = copied
    return repeated


@torch.inference_mode()
def prefill(
    model: PreTrainedModel,
    input_ids: Sequence[int],
    needs: Needs,
    *,
    sinks: int,
    recent: int,
    vocabulary: Vocabulary | None = None,
    chunk: int | None = None,
) -> Prefill:
    """Runs a one-row prompt through the model and observes it.

    Args:
        needs: what to observe.
        sinks, recent: numbers of protected tokens.
        vocabulary: the tokenizer, for lexical features.
        chunk: tokens per forward, which bounds the memory of activations; all at once by default.

    Raises:
        UnsupportedError: a model kvfw cannot compress, or lexical features are needed without a ``vocabulary``.
    """
    ids = torch.tensor([list(input_ids)], device=model.device)
    plan = SessionPlan(needs=needs, sinks=sinks, recent=recent, vocabulary=vocabulary, prompt_tokens=ids.shape[1])
    session = Session(model, new_cache(model), plan)
    started = clock_s(model.device)
    with session.running():
        for part in torch.split(ids, min(chunk or ids.shape[1], ids.shape[1]), dim=1):
            logits = model(input_ids=part, **passed(model, session.cache), use_cache=True, logits_to_keep=1).logits
    seconds = clock_s(model.device) - started
    if unseen := [part.index for part in session.anatomy.compressible if part.index not in session.observations]:
        raise UnsupportedError(
            f"layers {', '.join(map(str, unseen))} of {type(model).__name__} did not give their cached keys to "
            "transformers' attention interface, so kvfw cannot see them"
        )
    observations, probe_s = session.observations, 0.0
    if needs.probes:
        started = clock_s(model.device)
        found = probed(model, session.anatomy, session.cache, needs, vocabulary)
        probe_s = clock_s(model.device) - started
        observations = {
            index: replace(
                obs,
                columns={**obs.columns, **found[index].columns},
                references={**obs.references, **found[index].references},
            )
            for index, obs in observations.items()
        }
    return Prefill(session.cache, observations, logits[:, -1].float(), ids.shape[1], seconds, probe_s)
