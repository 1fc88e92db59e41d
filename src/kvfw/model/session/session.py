"""The session, the one mutable object: it keeps a cache up to date while a model runs through kvfw's attention."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvfw.core.state.lexical import rare_tokens
from kvfw.core.state.observation import Observation
from kvfw.errors import UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.captured import NewTokens
from kvfw.model.cache.layer import CompressedLayer, OpenBlock
from kvfw.model.compat.generation import watched_generate
from kvfw.model.compat.routing import own_implementation, routed, uncompiled
from kvfw.model.compat.versions import cache_in
from kvfw.model.inspect.adapters import active_adapters
from kvfw.model.inspect.layers import Anatomy, Layer, anatomy, text_config
from kvfw.model.inspect.support import fresh_layers
from kvfw.model.session import recall
from kvfw.model.session.attend import attended
from kvfw.model.session.budgets import Budgets, budgets
from kvfw.model.session.capture import captured_after
from kvfw.model.session.compress import compress, observe
from kvfw.model.session.longrope import check_dropped, check_switch, table_switch
from kvfw.model.session.place import new_tokens
from kvfw.model.session.plan import SessionPlan
from kvfw.model.session.schedule import Due, due


def new_cache(model: PreTrainedModel) -> CompressedCache:
    """An empty cache for a model; sliding-window layers are transformers' own.

    Raises:
        UnsupportedError: the model caches in a way kvfw cannot compress.
    """
    pairs = zip(anatomy(model).layers, fresh_layers(model.config), strict=True)
    cache = CompressedCache([CompressedLayer() if part.compressible else layer for part, layer in pairs])
    cache.made_for = model
    return cache


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
        #: The cache of the last forward: the session's own or a copy.
        self._current = cache
        self._padding: Tensor | None = None
        self._ids: Tensor | None = None
        #: The tokens of this forward, which its first layer places.
        self._new: NewTokens | None = None
        self._features: Tensor | None = None
        self._budgets: Budgets = {}
        self._standing: Budgets = {}

    @contextmanager
    def running(self) -> Iterator["Session"]:
        """Routes the model's attention through this session inside the block."""
        with ExitStack() as undo:
            undo.enter_context(routed(self.model, self))
            undo.enter_context(watched_generate(self.model, self._see_generate))
            undo.callback(self.model.register_forward_pre_hook(self._see_call, with_kwargs=True).remove)
            undo.callback(setattr, self._block, "is_open", False)
            self.cache.enter(self._block)
            self._take_over()
            yield self

    def _take_over(self) -> None:
        """Prepares a cache that an earlier block compressed, and drops what this block will not keep up to date.

        Raises:
            UnsupportedError: this block needs column sums that the cache does not have.
        """
        plan, layers = self.plan, self.cache.compressed_layers()
        ready = [layer for layer in layers if layer.compressed]
        if not ready:
            return
        wanted = plan.needs.column_sums if plan.again else frozenset[int]()
        if any(not wanted <= layer.captured.sums.keys() for layer in ready):
            raise UnsupportedError(
                "column sums (h2o) have to be counted from the prompt on, and this cache comes without them; "
                "compress it by h2o with compress_every= or recompress= from the start, or use another scorer"
            )
        standing = self._divided_standing(ready[0])
        for layer, part in zip(layers, self.anatomy.compressible, strict=True):
            budget = standing.get(part.index)
            known = replace(
                layer.captured,
                sums={n: layer.captured.sums[n] for n in wanted},
                standing=None if budget is None else budget.to(layer.device),
            )
            forgets = not plan.again or not plan.needs.queries
            layer.captured = replace(known, queries=None, query_positions=None) if forgets else known

    def owns(self, module: nn.Module, key: Tensor) -> bool:
        """Whether these keys came from a compressible layer of the session's cache or copy."""
        return recall.own_layer(self._current, getattr(module, "layer_idx", None), key) is not None

    def see_padding(self, padding: Tensor | None) -> None:
        """Remembers which tokens of the coming call are padding."""
        self._padding = padding

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
        cache = cache_in(kwargs)
        ids = kwargs.get("input_ids", args[0] if args else None)
        given = ids if ids is not None else kwargs.get("inputs_embeds")
        if not isinstance(cache, CompressedCache):
            if self._switch is not None and given is not None:
                check_dropped(self._switch, given.shape[1], self._current, self.model)
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
        self._current, seen = cache, cache.get_seq_length()
        self._ids = ids
        if not seen:
            cache.adapters = active_adapters(self.model)
        if given is not None:
            mask = kwargs.get("attention_mask")
            recall.check_tokens(given.shape[1], seen, mask)
            if seen:
                recall.go_on(cache, given, kwargs.get("position_ids"), mask)
        if self.plan.needs.lexical and ids is None and not cache.compressed_layers()[0].compressed:
            self._lexical(ids)

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own attention, with the right mask for compressed layers, then compression if due."""
        index, count = getattr(module, "layer_idx", None), query.shape[2]
        assert isinstance(index, int)
        layer = self._current.layers[index]
        assert isinstance(layer, CompressedLayer)  # as owns found
        if self._switch is not None:
            check_switch(self._switch, count, layer)
        part = self.anatomy.layers[index]
        if index == self._first or self._new is None:
            self._new = new_tokens(layer, count, kwargs.get("position_ids"), self._padding)
        new = self._new.to(layer.device)
        layer.place(new)
        if index == self._first:
            layer.captured = layer.captured.followed(new.positions, self._ids)
            self._ids = None
        if not layer.compressed or self.plan.again:
            layer.captured = captured_after(layer, new.positions, query, self.plan.needs, kwargs)
        output = attended(self._base, layer, module, query, key, value, attention_mask, **kwargs)
        if ended := due(self.plan, layer.captured, count, self._current.ends_at):
            self._event(part, layer, ended, kwargs)
        return output

    def _event(self, part: Layer, layer: CompressedLayer, ended: Due, kwargs: Mapping[str, Any]) -> None:
        """Observes a layer at the end of a turn or stretch, and compresses it if the plan has a compressor."""
        started, plan = time.perf_counter(), self.plan
        if part.index == self._first and plan.needs.lexical:
            self._features = self._lexical(layer.captured.seen_ids)
        obs = observe(layer, part, plan, self.anatomy.rotary.read(part.index), self._features, kwargs)
        if plan.compressor is None:
            self.observations[part.index] = obs
            return
        if ended is Due.TURN:
            if part.index == self._first:
                self._budgets = budgets(plan, self.anatomy.compressible, layer.captured.tokens, standing=False)
                self._standing = self._divided_standing(layer)
            if part.index in self._standing:
                layer.captured = replace(layer.captured, standing=self._standing[part.index].to(layer.device))
            budget = self._budgets[part.index].to(layer.device)
        else:
            assert layer.captured.standing is not None
            budget = layer.captured.standing
        compress(layer, obs, plan, budget)
        self.has_compressed = True
        self._current.compress_s[part.index] += time.perf_counter() - started

    def _divided_standing(self, layer: CompressedLayer) -> Budgets:
        """The budgets of compressions while decoding; empty without ``compress_every``."""
        if self.plan.compress_every is None:
            return {}
        return budgets(self.plan, self.anatomy.compressible, layer.captured.tokens, standing=True)

    def _lexical(self, ids: Tensor | None) -> Tensor:
        """Lexical features ``[B, N]`` of the prompt's tokens, the same for all layers."""
        if ids is None or self.plan.vocabulary is None:
            raise UnsupportedError("lexical features need the prompt's token ids; call the model with input_ids")
        rows = [rare_tokens(self.plan.vocabulary, row) for row in ids.tolist()]
        return torch.tensor(rows, dtype=torch.float32, device=ids.device)
