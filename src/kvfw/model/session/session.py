"""The one mutable object: what happens to a cache while a model runs through kvfw's attention."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvfw.core.compress.allocation import allocated
from kvfw.core.compress.stages import take_scores
from kvfw.core.ops.column_sums import column_sums
from kvfw.core.state.lexical import rare_tokens
from kvfw.core.state.observation import Observation, protect
from kvfw.core.state.slots import take
from kvfw.core.state.state import KVState
from kvfw.errors import UnsupportedError
from kvfw.model.cache.cache import CompressedCache, CompressedLayer
from kvfw.model.cache.masks import layer_mask
from kvfw.model.compat.routing import Attention, routed
from kvfw.model.compat.versions import cache_in
from kvfw.model.inspect.layers import Anatomy, Layer, anatomy, text_config
from kvfw.model.inspect.support import fresh_layers
from kvfw.model.session.longrope import check_switch, table_switch
from kvfw.model.session.plan import SessionPlan, check_call, check_goes_on, text_positions


def new_cache(model: PreTrainedModel) -> CompressedCache:
    """An empty cache of as many layers as the model has; sliding-window layers are transformers' own.

    Raises:
        UnsupportedError: the model caches in a way kvfw cannot compress.
    """
    parts = anatomy(model)
    cache = CompressedCache(
        [
            CompressedLayer() if part.compressible else layer
            for part, layer in zip(parts.layers, fresh_layers(model.config), strict=True)
        ]
    )
    cache.made_for = model
    return cache


class Session:
    """Sees every attention call of a model and keeps one cache's states right.

    Used through :meth:`running`. Calls with other caches pass through untouched.
    """

    def __init__(self, model: PreTrainedModel, cache: CompressedCache, plan: SessionPlan) -> None:
        self.model, self.cache, self.plan = model, cache, plan
        self.anatomy: Anatomy = anatomy(model)
        #: Observations of the last compression event by layer, kept only where nothing compresses.
        self.observations: dict[int, Observation] = {}
        self._base = text_config(model)._attn_implementation
        self._switch = table_switch(text_config(model))
        self._padding: Tensor | None = None
        self._budgets: dict[int, Tensor] = {}
        self._standing: dict[int, Tensor] = {}
        self._ids: Tensor | None = None
        self._features: Tensor | None = None

    @contextmanager
    def running(self) -> Iterator["Session"]:
        """Routes the model's attention through this session for the length of the block."""
        with ExitStack() as undo:
            undo.enter_context(routed(self.model, self))
            undo.callback(self.model.register_forward_pre_hook(self._see_call, with_kwargs=True).remove)
            undo.callback(self._set_attached, False)
            self._set_attached(True)
            self._take_over()
            yield self

    def _take_over(self) -> None:
        """Readies a cache that an earlier block compressed.

        What that block counted stays only where this one goes on counting; with a gap it would be wrong.

        Raises:
            UnsupportedError: this block needs counts that the cache does not have.
        """
        for layer in self.cache.compressed_layers():
            if not layer.compressed:
                continue
            if not self.plan.again or not self.plan.needs.queries:
                layer.window = None
            wanted = self.plan.needs.column_sums if self.plan.again else frozenset()
            if not wanted <= layer.column_sums.keys():
                raise UnsupportedError(
                    "column sums (h2o) have to be counted from the prompt on, and this cache comes without them; "
                    "compress it by h2o with compress_every= or recompress= from the start, or use another scorer"
                )
            layer.column_sums = {n: layer.column_sums[n] for n in wanted}
            layer.standing = None
        first = self.cache.layers[self.anatomy.compressible[0].index]
        if self.plan.compress_every is None or not isinstance(first, CompressedLayer) or not first.compressed:
            return
        assert self.plan.compressor is not None
        assert first.tokens is not None
        standing = self._divided(first.tokens, standing=True)
        for index, budget in standing.items():
            ready = self.cache.layers[index]
            assert isinstance(ready, CompressedLayer)
            ready.standing = budget.to(ready.device)

    def _set_attached(self, attached: bool) -> None:
        for layer in self.cache.compressed_layers():
            layer.attached = attached

    def see_padding(self, padding: Tensor | None) -> None:
        """Remembers which tokens of the coming forward are padding."""
        self._padding = padding

    def _see_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Looks at a forward into our cache before it runs."""
        if cache_in(kwargs) is not self.cache:
            return
        ids = kwargs.get("input_ids", args[0] if args else None)
        given = ids if ids is not None else kwargs.get("inputs_embeds")
        if given is not None:
            new, seen, mask = given.shape[1], self.cache.get_seq_length(), kwargs.get("attention_mask")
            check_call(new, seen, mask)
            if seen:
                first = self.cache.layers[self.anatomy.compressible[0].index]
                assert isinstance(first, CompressedLayer)
                check_goes_on(first.state, given, kwargs.get("position_ids"), mask)
        if self.plan.needs.lexical:
            self._see_ids(ids)

    def _see_ids(self, ids: Tensor | None) -> None:
        """Remembers the prompt's token ids until the prompt is over."""
        if any(layer.compressed for layer in self.cache.compressed_layers()):
            return
        if self.cache.get_seq_length() == 0:
            # A prompt begins; one before it, that a reset made the cache forget, is forgotten here too.
            self._ids = self._features = None
        if ids is None:
            raise UnsupportedError("lexical features need the prompt's token ids; call the model with input_ids")
        self._ids = ids if self._ids is None else torch.cat((self._ids, ids), dim=1)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own attention, with the right mask for compressed layers, and compression where it is due."""
        index = getattr(module, "layer_idx", None)
        layer = self._own_layer(index, key)
        if self._switch is not None:
            check_switch(self._switch, query.shape[2], layer, self.cache, self.model)
        if layer is None:
            return self._attention(module)(module, query, key, value, attention_mask, **kwargs)
        assert isinstance(index, int)
        if kwargs.get("position_bias") is not None:
            raise UnsupportedError(
                f"{type(module).__name__} adds a bias to its attention logits that is made for every token of the "
                "prompt in its place; after compression slots have other places, so kvfw cannot stand in for it"
            )
        count = query.shape[2]
        layer.place(self._positions(layer, query, kwargs), self._real(count))
        self._keep_window(query, layer)
        if not layer.compressed or self.plan.again:
            self._add_sums(query, layer, kwargs)
        if not layer.compressed:
            output = self._attention(module)(module, query, key, value, attention_mask, **kwargs)
        else:
            mask = layer_mask(layer.state, count, query, plain=layer.plain)
            output = self._attention(module, mask, kwargs)(module, query, key, value, mask, **kwargs)
        self._compress_if_due(self.anatomy.layers[index], layer, count, kwargs)
        return output

    def _compress_if_due(self, part: Layer, layer: CompressedLayer, count: int, kwargs: dict[str, Any]) -> None:
        """Compression after a forward of ``count`` tokens, where the prompt, a turn or a stretch of decoding ends."""
        over = self._turn_is_over(layer, count)
        if not layer.compressed:
            if over:
                self._event(part, layer, kwargs, standing=False)
        elif self.plan.recompress and over:
            self._event(part, layer, kwargs, standing=False)
        elif over is not None and self._stretch_is_over(layer):
            # Not in the midst of an announced turn: the result would depend on how it is cut up.
            self._event(part, layer, kwargs, standing=True)

    def _stretch_is_over(self, layer: CompressedLayer) -> bool:
        every = self.plan.compress_every
        return every is not None and layer.seen - layer.compressed_at >= every

    def _own_layer(self, index: object, key: Tensor) -> CompressedLayer | None:
        """The layer of our cache that these keys came from, or None: another cache, or a sliding-window layer."""
        if not isinstance(index, int) or index >= len(self.cache.layers):
            return None
        layer = self.cache.layers[index]
        return layer if isinstance(layer, CompressedLayer) and layer.keys is key else None

    def _attention(
        self, module: nn.Module, mask: Tensor | None = None, kwargs: Mapping[str, Any] = MappingProxyType({})
    ) -> Attention:
        """The model's own attention function.

        FlashAttention takes no additive mask, so masked layers then run on sdpa; where the logits are capped or heads
        have sinks of their own, which sdpa refuses or ignores, on eager attention.
        """
        name = self._base
        if mask is not None and name.startswith(("flash", "flex")):
            special = kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None
            name = "eager" if special else "sdpa"
        if name == "eager":
            found: Attention = sys.modules[type(module).__module__].eager_attention_forward
            return found
        function: Attention = ALL_ATTENTION_FUNCTIONS[name]
        return function

    def _positions(self, layer: CompressedLayer, query: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """Positions ``[B, n]`` the model gave the new tokens; consecutive ones where it does not pass them on."""
        batch, count = query.shape[0], query.shape[2]
        given = kwargs.get("position_ids")
        if given is None:
            return layer.next_positions(count)
        return text_positions(given, count).expand(batch, count)

    def _real(self, count: int) -> Tensor | None:
        """Which of the new tokens are not padding, ``[B, n]``; None if all are real."""
        if self._padding is None or bool(self._padding[:, -count:].all()):
            return None
        real = self._padding[:, -count:].to(torch.bool)
        if count > 1 and not bool(real[:, -1].all()):
            raise UnsupportedError(
                "a prompt of this batch ends in padding; kvfw needs it on the left: set tokenizer.padding_side='left'"
            )
        return real

    def _keep_window(self, query: Tensor, layer: CompressedLayer) -> None:
        """Keeps copies of the last queries, across chunks and turns, while an event may still need them."""
        width = self.plan.needs.queries
        if width == 0 or (layer.compressed and not self.plan.again):
            return
        positions = _query_positions(layer.state, query.shape[2])
        old = layer.window
        queries = query if old is None else torch.cat((old[0], query), dim=2)
        positions = positions if old is None else torch.cat((old[1], positions), dim=1)
        if not layer.plain and _parted(positions >= 0):
            # Padding goes to the left, so that as many queries of text are kept as the row has alone.
            order = (positions >= 0).to(torch.uint8).argsort(dim=1, stable=True)
            positions = positions.gather(1, order)
            queries = queries.gather(2, order[:, None, :, None].expand_as(queries))
        layer.window = (queries[:, :, -width:].clone(), positions[:, -width:].clone())

    def _add_sums(self, query: Tensor, layer: CompressedLayer, kwargs: dict[str, Any]) -> None:
        """Adds the attention that the prompt's keys received from these queries; chunks add up to the whole."""
        if not self.plan.needs.column_sums:
            return
        state = layer.state
        positions = _query_positions(state, query.shape[2])
        distances = tuple(sorted(self.plan.needs.column_sums))
        new = column_sums(
            query,
            positions,
            state,
            _scale(state, kwargs),
            distances,
            softcap=kwargs.get("softcap"),
            sink_logits=_sink_logits(kwargs),
        )
        for n, sums in layer.column_sums.items():
            new[n][..., : sums.shape[-1]] += sums
        layer.column_sums = new

    def _turn_is_over(self, layer: CompressedLayer, count: int) -> bool | None:
        """Whether a prompt or turn ended with the last ``count`` tokens; None in the midst of an announced one.

        Raises:
            UnsupportedError: a forward went beyond the end that was announced.
        """
        end = self.cache.ends_at if self.cache.ends_at is not None else self.plan.prompt_tokens
        if end is None or layer.seen - count >= end:
            return not layer.compressed or count > 1
        if layer.seen > end:
            raise UnsupportedError(
                f"the prompt was said to end after {end} tokens, but a forward reached {layer.seen}; feed the first "
                f"{end} tokens in forwards of their own"
            )
        return True if layer.seen == end else None

    def _event(self, part: Layer, layer: CompressedLayer, kwargs: dict[str, Any], *, standing: bool) -> None:
        """The prompt, a turn or a stretch of decoding ends here for this layer: observe it, compress it if asked to."""
        started = time.perf_counter()
        obs = self._observe(part, layer, kwargs)
        if self.plan.compressor is None:
            self.observations[part.index] = obs
            return
        self._same_rotation(layer, obs)
        budget = self._budget(part, layer, standing=standing)
        if self.plan.again:
            state, layer.column_sums = self.plan.compressor.compress_with_sums(obs, budget)
        else:
            state, layer.column_sums = self.plan.compressor.compress(obs, budget), {}
            layer.window = None
        layer.hold(state)
        self.cache.compress_s[part.index] += time.perf_counter() - started

    def _same_rotation(self, layer: CompressedLayer, obs: Observation) -> None:
        """Remembers how the keys are rotated.

        Raises:
            UnsupportedError: it changed since an earlier compression, and nothing says which slot has which.
        """
        if obs.rope is None:
            return
        before, now = layer.inv_freq, obs.rope.inv_freq
        if before is not None and not torch.equal(before.to(now.device), now):
            raise UnsupportedError(
                "this model changes its rotation with the length (dynamic or LongRoPE scaling), and it changed since "
                "the cache was last compressed, so the keys can no longer be told apart; compress once, without "
                "recompress= and compress_every="
            )
        layer.inv_freq = now

    def _observe(self, part: Layer, layer: CompressedLayer, kwargs: dict[str, Any]) -> Observation:
        queries, query_positions = layer.window if layer.window is not None else (None, None)
        state, sums = layer.state, layer.column_sums
        lexical = self._lexical(state) if self.plan.needs.lexical else None
        if not layer.plain and _parted(state.valid):
            # Padding of a later turn, or in the midst of a text, stands between slots; neighbours there would be
            # scored as if text parted them.
            full = state
            state = take(full, full.valid)
            sums = {n: take_scores(part, full.valid, state.width) * state.valid for n, part in sums.items()}
            if lexical is not None:
                lexical = (take_scores(lexical[:, None], full.valid[:, :1], state.width) * state.valid[:, :1])[:, 0]
        return Observation(
            state=state,
            protected=protect(state.valid, self.plan.sinks, self.plan.recent),
            scale=_scale(state, kwargs),
            layer=part.index,
            rope=self.anatomy.rotary.read(part.index),
            queries=queries,
            query_positions=query_positions,
            column_sums=sums,
            lexical=lexical,
            output_projection=part.output_projection,
            softcap=kwargs.get("softcap"),
            sink_logits=_sink_logits(kwargs),
        )

    def _budget(self, part: Layer, layer: CompressedLayer, *, standing: bool) -> Tensor:
        """Slots for this layer's heads. All layers' budgets are divided once, at the first layer of an event."""
        assert self.plan.compressor is not None
        assert layer.tokens is not None
        if standing:
            assert layer.standing is not None
            return layer.standing
        if part.index == self.anatomy.compressible[0].index:
            self._budgets = self._divided(layer.tokens, standing=False)
            if self.plan.compress_every is not None:
                self._standing = self._divided(layer.tokens, standing=True)
        if self.plan.compress_every is not None:
            layer.standing = self._standing[part.index].to(layer.device)
        return self._budgets[part.index].to(layer.device)

    def _divided(self, tokens: Tensor, *, standing: bool) -> dict[int, Tensor]:
        """The budget for rows of so many tokens, divided over layers and heads by the allocator."""
        by = self.plan.compressor
        assert by is not None
        each, middle = by.standing_slots(tokens) if standing else by.middle_slots(tokens), by.middle(tokens)
        if standing:
            # At the end of a stretch the middle has what it was brought down to, and what was decoded since.
            middle = torch.maximum(middle, each + (self.plan.compress_every or 0))
        heads = {part.index: part.kv_heads for part in self.anatomy.compressible}
        return allocated(self.plan.allocator, each, middle, heads)

    def _lexical(self, state: KVState) -> Tensor:
        """Lexical features of the prompt's tokens, ``[B, N]``; the same for all layers."""
        assert self.plan.vocabulary is not None
        if self._features is None:
            assert self._ids is not None
            rows = [rare_tokens(self.plan.vocabulary, row) for row in self._ids.tolist()]
            self._features = torch.tensor(rows, dtype=torch.float32, device=state.keys.device)
        return self._features


def _parted(real: Tensor) -> bool:
    """Whether padding follows something real along the last dimension."""
    return bool((real[..., :-1] & ~real[..., 1:]).any())


def _query_positions(state: KVState, count: int) -> Tensor:
    """Positions ``[B, n]`` of the queries of the last n slots; -1 for padding."""
    return state.positions[:, 0, -count:].masked_fill(state.mass[:, 0, -count:] == 0, -1.0)


def _scale(state: KVState, kwargs: dict[str, Any]) -> float:
    """What the model multiplies query-key products by."""
    given = kwargs.get("scaling")
    return float(given) if given is not None else float(state.keys.shape[-1] ** -0.5)


def _sink_logits(kwargs: Mapping[str, Any]) -> Tensor | None:
    """Logit ``[H]`` of each query head's own attention sink, where the model has them."""
    sinks: Tensor | None = kwargs.get("s_aux")
    return None if sinks is None else sinks.detach().flatten()
