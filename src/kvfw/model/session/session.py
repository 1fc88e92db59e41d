"""The session, the one mutable object: it keeps a cache up to date while a model runs through kvfw's attention."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from kvfw.core.compress.allocation import Budgets, scored_budgets
from kvfw.core.compress.compressor import Rule
from kvfw.core.compress.scores import Scores
from kvfw.core.state.observation import PROMPT, Needs, Observation
from kvfw.core.state.slots import take
from kvfw.errors import UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.captured import NewTokens
from kvfw.model.cache.layer import CompressedLayer, OpenBlock
from kvfw.model.compat.clock import clock_s
from kvfw.model.compat.generation import watched_generate
from kvfw.model.compat.routing import own_implementation, routed, uncompiled
from kvfw.model.compat.versions import cache_in
from kvfw.model.inspect.adapters import active_adapters
from kvfw.model.inspect.layers import Anatomy, anatomy, text_config
from kvfw.model.inspect.support import fresh_layers
from kvfw.model.session import recall
from kvfw.model.session.attend import attended
from kvfw.model.session.budgets import budgets
from kvfw.model.session.capture import SeenTokens, captured_after
from kvfw.model.session.compress import compress, observe
from kvfw.model.session.hidden import HiddenNorms, hidden_norms
from kvfw.model.session.longrope import check_dropped, check_switch, table_switch
from kvfw.model.session.place import new_tokens
from kvfw.model.session.plan import SessionPlan
from kvfw.model.session.probing import probed
from kvfw.model.session.schedule import Due, due
from kvfw.model.session.text import TextFeatures, text_features


def new_cache(model: PreTrainedModel) -> CompressedCache:
    """An empty cache for a model; sliding-window layers are transformers' own.

    Raises:
        UnsupportedError: the model caches in a way kvfw cannot compress.
    """
    pairs = zip(anatomy(model).layers, fresh_layers(model.config), strict=True)
    cache = CompressedCache([CompressedLayer() if part.compressible else layer for part, layer in pairs])
    cache.made_for = model
    return cache


@dataclass(frozen=True)
class Work:
    """A layer to compress, its mean budget, and the arguments its attention was called with."""

    layer: CompressedLayer
    budget: Tensor
    kwargs: Mapping[str, Any]


class _Forward(threading.local):
    """What a session knows of the forward in progress: a forward runs in one thread, and copies may run in several."""

    def __init__(self, cache: CompressedCache) -> None:
        #: The cache of the last forward: the session's own or a copy.
        self.cache = cache
        self.padding: Tensor | None = None
        self.ids: Tensor | None = None
        #: The tokens of this forward, which its first layer places.
        self.new: NewTokens | None = None
        self.text = TextFeatures()
        self.budgets: Budgets = {}
        self.standing: Budgets = {}
        #: Layers that are compressed when the forward is over.
        self.waiting: dict[int, Work] = {}


class Session:
    """Handles a model's attention calls for one cache and its copies, inside :meth:`running`; ignores other caches."""

    def __init__(self, model: PreTrainedModel, cache: CompressedCache, plan: SessionPlan) -> None:
        self.model, self.cache, self.plan = model, cache, plan
        self.anatomy: Anatomy = anatomy(model)
        if plan.needs.projection:
            self.anatomy.check_projections(type(model).__name__)
        #: Observations at the last event by layer, kept only without a compressor.
        self.observations: dict[int, Observation] = {}
        #: Whether anything was compressed, in the cache or in a copy.
        self.has_compressed = False
        self._first = self.anatomy.compressible[0].index
        self._config = text_config(model)
        self._base = own_implementation(model)
        self._switch = table_switch(self._config)
        self._block = OpenBlock()
        self._forward = _Forward(cache)
        #: Norms of the hidden states that attention layers read, where they are needed.
        self._norms = HiddenNorms()

    @contextmanager
    def running(self) -> Iterator["Session"]:
        """Routes the model's attention through this session inside the block."""
        with ExitStack() as undo:
            undo.enter_context(routed(self.model, self))
            undo.enter_context(watched_generate(self.model, self._see_generate))
            undo.callback(self.model.register_forward_pre_hook(self._see_call, with_kwargs=True).remove)
            undo.callback(self.model.register_forward_hook(self._see_end).remove)
            if any(columns.per_norm for columns in self.plan.needs.of_source(PROMPT).columns):
                self._norms = undo.enter_context(hidden_norms(self.model))
            undo.callback(setattr, self._block, "is_open", False)
            self.cache.enter(self._block)
            self._take_over()
            yield self

    def _take_over(self) -> None:
        """Prepares a cache that an earlier block compressed, and drops what this block will not keep up to date.

        Raises:
            UnsupportedError: this block needs column sums or moments that the cache does not have.
        """
        plan = self.plan
        pairs = list(zip(self.cache.compressed_layers(), self.anatomy.compressible, strict=True))
        ready = [(layer.captured, self._needs(part.index)) for layer, part in pairs if layer.compressed]
        if not ready:
            return
        if plan.again and any(not needs.moments <= known.moments.keys() for known, needs in ready):
            raise UnsupportedError(
                "moments of queries (expected) have to be counted from the prompt on, and this cache comes without "
                "them, or ran outside a block since; compress it by such a scorer with compress_every= or recompress= "
                "from the start, run it in such blocks only, or use another scorer"
            )
        if plan.again and any(not needs.column_sums <= known.sums.keys() for known, needs in ready):
            raise UnsupportedError(
                "column sums (h2o) have to be counted from the prompt on, and this cache comes without them, or ran "
                "outside a block since; compress it by h2o with compress_every= or recompress= from the start, run it "
                "in such blocks only, or use another scorer"
            )
        standing = self._divided_standing(self.cache.compressed_layers()[0])
        for layer, part in pairs:
            budget, wanted = standing.get(part.index), self._needs(part.index) if plan.again else Needs()
            known = replace(
                layer.captured,
                sums={n: layer.captured.sums[n] for n in wanted.column_sums},
                moments={n: layer.captured.moments[n] for n in wanted.moments},
                standing=None if budget is None else budget.to(layer.device),
            )
            forgets = not plan.again or not plan.needs.queries
            layer.captured = replace(known, queries=None, query_positions=None) if forgets else known

    def __reduce_ex__(self, protocol: object) -> str | tuple[Any, ...]:
        """Refuses to be copied or pickled with the model, whose hooks refer to it."""
        raise UnsupportedError(
            "a model cannot be copied or pickled inside kvfw.attach, as the copy would stay attached; do it before the "
            "block or after it"
        )

    def owns(self, module: nn.Module, key: Tensor) -> bool:
        """Whether these keys came from a compressible layer of the session's cache or copy."""
        return recall.own_layer(self._forward.cache, getattr(module, "layer_idx", None), key) is not None

    def see_padding(self, padding: Tensor | None) -> None:
        """Remembers which tokens of the coming call are padding."""
        self._forward.padding = padding

    def _see_generate(self, given: Mapping[str, Any]) -> None:
        """Checks a call of ``generate`` before it runs."""
        cache = cache_in(given)
        if isinstance(cache, CompressedCache) and cache.block is self._block:
            recall.check_generate(cache, given)

    @uncompiled
    def _see_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """Checks a forward into the session's cache, or into a copy, before it runs."""
        if kwargs is None:
            # Torch registers a hook and its with_kwargs in two steps. A forward of another thread came in between, as
            # this block opened or closed; it does not concern this session.
            return
        # What an interrupted forward left to do is not to be done after another one.
        self._forward.waiting = {}
        cache = cache_in(kwargs)
        ids = kwargs.get("input_ids", args[0] if args else None)
        given = ids if ids is not None else kwargs.get("inputs_embeds")
        if not isinstance(cache, CompressedCache):
            if self._switch is not None and given is not None:
                check_dropped(self._switch, given.shape[1], self._forward.cache, self.model)
            return
        if cache.block is not self._block:
            return
        now = self._config._attn_implementation
        if not str(now).startswith("kvfw"):
            raise UnsupportedError(
                f"the attention implementation was changed to {now!r} inside the block, so kvfw no longer sees "
                "attention; choose it before kvfw.attach"
            )
        recall.check_inputs(kwargs)
        cache.check_whole()
        self._forward.cache, seen = cache, cache.get_seq_length()
        self._forward.ids = ids
        if not seen:
            cache.adapters = active_adapters(self.model)
        if given is not None:
            mask = kwargs.get("attention_mask")
            recall.check_tokens(given.shape[1], seen, mask)
            if seen:
                recall.go_on(cache, given, kwargs.get("position_ids"), mask)
        reads_text = self.plan.needs.text or self.plan.needs.probes
        if reads_text and ids is None and not cache.compressed_layers()[0].compressed:
            why = "looks at the prompt's text" if self.plan.needs.text else "probes the model with the prompt's text"
            raise UnsupportedError(f"this composition {why}; call the model with input_ids")

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own attention, with the right mask for compressed layers, then compression if due."""
        index, count = getattr(module, "layer_idx", None), query.shape[2]
        assert isinstance(index, int)
        layer = self._forward.cache.layers[index]
        assert isinstance(layer, CompressedLayer)  # as owns found
        if self._switch is not None:
            check_switch(self._switch, count, layer)
        forward, needs = self._forward, self._needs(index)
        end = forward.cache.ends_at if forward.cache.ends_at is not None else self.plan.prompt_tokens
        if index == self._first or forward.new is None:
            forward.new = new_tokens(layer, count, kwargs.get("position_ids"), forward.padding, end)
        new = forward.new.to(layer.device)
        layer.place(new)
        if index == self._first:
            layer.captured = layer.captured.followed(new.positions, forward.ids)
            forward.ids = None
        if not layer.compressed or self.plan.again:
            seen = layer.captured.seen
            rope = self.anatomy.rotary.read(index) if needs.moments else None
            shown = SeenTokens(query, kwargs, rope, self._norms.of_layer.get(index), seen - count, end or seen)
            layer.captured = captured_after(layer, new.positions, shown, needs)
        output = attended(self._base, layer, module, query, key, value, attention_mask, **kwargs)
        if ended := due(self.plan, layer.captured, count, end):
            self._event(index, layer, ended, kwargs)
        return output

    def _event(self, index: int, layer: CompressedLayer, ended: Due, kwargs: Mapping[str, Any]) -> None:
        """Observes a layer at the end of a turn or stretch, and compresses it if the plan has a compressor.

        Where that depends on all layers or on a probe, it happens when the forward is over.
        """
        plan, forward = self.plan, self._forward
        if index == self._first:
            forward.text = text_features(layer.captured.seen_ids, plan.needs, plan.vocabulary)
        if plan.compressor is None:
            self.observations[index] = self._observed(index, layer, kwargs)
            return
        if ended is Due.TURN:
            if index == self._first:
                forward.budgets = budgets(plan, self.anatomy.compressible, layer.captured.tokens, standing=False)
                forward.standing = self._divided_standing(layer)
            if index in forward.standing:
                layer.captured = replace(layer.captured, standing=forward.standing[index].to(layer.device))
        rule = plan.compressor.rule(index)
        if not rule.stages:
            self._leave(rule, index, layer, kwargs)
            layer.captured = layer.captured.compressed_now(queries=None, query_positions=None, sums={}, moments={})
            return
        budget = forward.budgets[index] if ended is Due.TURN else layer.captured.standing
        assert budget is not None
        work = Work(layer, budget.to(layer.device), kwargs)
        if rule.waits:
            forward.waiting[index] = work
        else:
            self._compress(rule, {index: work})

    def _leave(self, rule: Rule, index: int, layer: CompressedLayer, kwargs: Mapping[str, Any]) -> None:
        """Keeps every slot, from now on with room for what is appended; codes them once, if that is asked for."""
        if (coder := rule.coder(index)) is None:
            layer.hold(layer.state)
        elif not layer.compressed:
            obs = self._observed(index, layer, kwargs)
            layer.hold(take(obs.state, obs.state.valid), coder, obs)

    def _see_end(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any = None) -> None:
        """Compresses, at the end of a forward, the layers that waited for it."""
        waiting, self._forward.waiting = self._forward.waiting, {}
        if not waiting or self.plan.compressor is None:
            return
        cache, needs = self._forward.cache, self.plan.needs
        if needs.probes:
            started = clock_s(self.model.device)
            found = probed(self.model, self.anatomy, cache, needs, self.plan.vocabulary, self.plan.probe_ids)
            for index, work in waiting.items():
                before = work.layer.captured
                work.layer.captured = replace(
                    before,
                    columns={**before.columns, **found[index].columns},
                    references={**before.references, **found[index].references},
                )
            cache.probe_s += clock_s(self.model.device) - started
        cache.waited = True
        for rule in self.plan.compressor.rules:
            if pool := {i: work for i, work in waiting.items() if self.plan.compressor.rule(i) is rule}:
                self._compress(rule, pool)

    def _compress(self, rule: Rule, pool: Mapping[int, Work]) -> None:
        """Compresses layers whose budgets are divided together."""
        started = time.perf_counter()
        scores = {index: Scores(self._observed(index, work.layer, work.kwargs)) for index, work in pool.items()}
        found = scored_budgets(rule, {index: work.budget for index, work in pool.items()}, scores)
        shared = (time.perf_counter() - started) / len(pool)
        for index, work in pool.items():
            started = time.perf_counter()
            compress(work.layer, scores.pop(index), self.plan, found[index].to(work.layer.device))
            self._forward.cache.compress_s[index] += shared + time.perf_counter() - started
        self.has_compressed = True

    def _observed(self, index: int, layer: CompressedLayer, kwargs: Mapping[str, Any]) -> Observation:
        part, rope = self.anatomy.layers[index], self.anatomy.rotary.read(index)
        return observe(layer, part, self.plan, rope, self._forward.text, kwargs)

    def _divided_standing(self, layer: CompressedLayer) -> Budgets:
        """The budgets of compressions while decoding; empty without ``compress_every``."""
        if self.plan.compress_every is None:
            return {}
        return budgets(self.plan, self.anatomy.compressible, layer.captured.tokens, standing=True)

    def _needs(self, index: int) -> Needs:
        """What has to be captured of a layer."""
        by = self.plan.compressor
        return self.plan.needs if by is None else by.rule(index).needs
