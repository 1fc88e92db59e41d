"""The one mutable object: what happens to a cache while a model runs through kvfw's attention."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvfw.core.allocate import Uniform
from kvfw.core.compressor import Compressor
from kvfw.core.interfaces import Allocator
from kvfw.core.lexical import Vocabulary, rare_tokens
from kvfw.core.observation import Needs, Observation, protect
from kvfw.core.ops.column_sums import column_sums
from kvfw.core.state import KVState
from kvfw.errors import BudgetError, UnsupportedError
from kvfw.model.cache import CompressedCache, CompressedLayer
from kvfw.model.layers import Anatomy, Layer, anatomy, text_config
from kvfw.model.longrope import check_switch, table_switch
from kvfw.model.masks import layer_mask
from kvfw.model.support import fresh_layers
from kvfw.model.switch import Attention, routed


@dataclass(frozen=True)
class Plan:
    """What a session does at the end of the prompt.

    Args:
        needs: what to capture on the way.
        sinks, recent: tokens that are always kept.
        compressor: compresses every layer; None only observes.
        prompt_tokens: the prompt ends when this many tokens were seen, padding included; None: after the first forward.
        recompress: compress again at the end of every later forward of more than one token.
        allocator: divides the budget over layers and heads.
        vocabulary: the tokenizer, for lexical features.

    Raises:
        UnsupportedError: lexical features are needed but there is no tokenizer; or a later compression would need
            statistics that only a first one has.
    """

    needs: Needs
    sinks: int
    recent: int
    compressor: Compressor | None = None
    prompt_tokens: int | None = None
    recompress: bool = False
    allocator: Allocator = field(default_factory=Uniform)
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        if self.prompt_tokens is not None and self.prompt_tokens < 1:
            raise BudgetError(f"prompt_tokens is {self.prompt_tokens}; it is the prompt's length in tokens, 1 or more")
        if self.needs.lexical and self.vocabulary is None:
            raise UnsupportedError("this composition looks at the prompt's text (lexical features); pass tokenizer=")
        if self.recompress and (self.needs.lexical or self.needs.column_sums):
            raise UnsupportedError(
                "recompress works with scorers that look at the last queries or at keys; column sums (h2o) and lexical "
                "features (pinned) are known for the first prompt only"
            )


def new_cache(model: PreTrainedModel) -> CompressedCache:
    """An empty cache of as many layers as the model has; sliding-window layers are transformers' own.

    Raises:
        UnsupportedError: the model caches in a way kvfw cannot compress.
    """
    parts = anatomy(model)
    return CompressedCache(
        [
            CompressedLayer() if part.compressible else layer
            for part, layer in zip(parts.layers, fresh_layers(model.config), strict=True)
        ]
    )


class Session:
    """Sees every attention call of a model and keeps one cache's states right.

    Used through :meth:`running`. Calls with other caches pass through untouched.
    """

    def __init__(self, model: PreTrainedModel, cache: CompressedCache, plan: Plan) -> None:
        self.model, self.cache, self.plan = model, cache, plan
        self.anatomy: Anatomy = anatomy(model)
        #: Observations of the last compression event by layer, kept only where nothing compresses.
        self.observations: dict[int, Observation] = {}
        self._base = text_config(model)._attn_implementation
        self._switch = table_switch(text_config(model))
        self._padding: Tensor | None = None
        self._budgets: dict[int, Tensor] = {}
        self._ids: Tensor | None = None
        self._features: Tensor | None = None

    @contextmanager
    def running(self) -> Iterator["Session"]:
        """Routes the model's attention through this session for the length of the block."""
        with ExitStack() as undo:
            undo.enter_context(routed(self.model, self))
            if self.plan.needs.lexical:
                undo.callback(self.model.register_forward_pre_hook(self._see_ids, with_kwargs=True).remove)
            undo.callback(self._set_attached, False)
            self._set_attached(True)
            yield self

    def _set_attached(self, attached: bool) -> None:
        for layer in self.cache.compressed_layers():
            layer.attached = attached

    def see_padding(self, padding: Tensor | None) -> None:
        """Remembers which tokens of the coming forward are padding."""
        self._padding = padding

    def _see_ids(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remembers the prompt's token ids until the prompt is over."""
        if kwargs.get("cache", kwargs.get("past_key_values")) is not self.cache:
            return
        if any(layer.compressed for layer in self.cache.compressed_layers()):
            return
        if self.cache.get_seq_length() == 0:
            # A prompt begins; one before it, that a reset made the cache forget, is forgotten here too.
            self._ids = self._features = None
        ids = kwargs.get("input_ids", args[0] if args else None)
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
        """The model's own attention, with the right mask for compressed layers, and compression at the prompt's end."""
        index = getattr(module, "layer_idx", None)
        layer = self._own_layer(index, key)
        if self._switch is not None:
            check_switch(self._switch, query.shape[2], layer, self.cache)
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
        if not layer.compressed:
            self._add_sums(query, layer, kwargs)
            output = self._attention(module)(module, query, key, value, attention_mask, **kwargs)
            if self._prompt_is_over(layer):
                self._event(self.anatomy.layers[index], layer, kwargs)
            return output
        mask = layer_mask(layer.state, count, query, plain=layer.plain)
        attention = self._attention(module, mask, kwargs)
        output = attention(module, query, key, value, mask, **kwargs)
        if self.plan.recompress and count > 1:
            self._event(self.anatomy.layers[index], layer, kwargs)
        return output

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
        # Multi-axis ids [axes, B, n] agree on all axes for text.
        ids: Tensor = given[0] if given.ndim == 3 else given
        return ids[:, -count:].to(torch.float32).expand(batch, count)

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
        if width == 0 or (layer.compressed and not self.plan.recompress):
            return
        positions = _query_positions(layer.state, query.shape[2])
        old = layer.window
        queries = query if old is None else torch.cat((old[0], query), dim=2)
        positions = positions if old is None else torch.cat((old[1], positions), dim=1)
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

    def _prompt_is_over(self, layer: CompressedLayer) -> bool:
        end = self.plan.prompt_tokens
        if end is None or layer.seen == end:
            return True
        if layer.seen > end:
            raise UnsupportedError(
                f"the prompt was said to end after {end} tokens, but a forward reached {layer.seen}; feed the first "
                f"{end} tokens in forwards of their own"
            )
        return False

    def _event(self, part: Layer, layer: CompressedLayer, kwargs: dict[str, Any]) -> None:
        """The prompt (or a later turn) ends here for this layer: observe it, and compress it if asked to."""
        started = time.perf_counter()
        obs = self._observe(part, layer, kwargs)
        if self.plan.compressor is None:
            self.observations[part.index] = obs
            return
        layer.hold(self.plan.compressor.compress(obs, self._budget(part, layer)))
        layer.column_sums = {}
        if not self.plan.recompress:
            layer.window = None
        self.cache.compress_s[part.index] += time.perf_counter() - started

    def _observe(self, part: Layer, layer: CompressedLayer, kwargs: dict[str, Any]) -> Observation:
        queries, query_positions = layer.window if layer.window is not None else (None, None)
        state = layer.state
        return Observation(
            state=state,
            protected=protect(state.valid, self.plan.sinks, self.plan.recent),
            scale=_scale(state, kwargs),
            layer=part.index,
            rope=self.anatomy.rotary.read(part.index),
            queries=queries,
            query_positions=query_positions,
            column_sums=layer.column_sums,
            lexical=self._lexical(state) if self.plan.needs.lexical else None,
            output_projection=part.output_projection,
            softcap=kwargs.get("softcap"),
            sink_logits=_sink_logits(kwargs),
        )

    def _budget(self, part: Layer, layer: CompressedLayer) -> Tensor:
        """Slots for this layer's heads. All layers' budgets are divided once, at the first layer of an event."""
        assert self.plan.compressor is not None
        parts = self.anatomy.compressible
        if part.index == parts[0].index:
            assert layer.tokens is not None
            each = self.plan.compressor.middle_slots(layer.tokens)
            heads = [p.kv_heads for p in parts]
            divided = self.plan.allocator.allocate(each * sum(heads), heads)
            self._budgets = {p.index: budget for p, budget in zip(parts, divided, strict=True)}
        return self._budgets[part.index].to(layer.device)

    def _lexical(self, state: KVState) -> Tensor:
        """Lexical features of the prompt's tokens, ``[B, N]``; the same for all layers."""
        assert self.plan.vocabulary is not None
        if self._features is None:
            assert self._ids is not None
            rows = [rare_tokens(self.plan.vocabulary, row) for row in self._ids.tolist()]
            self._features = torch.tensor(rows, dtype=torch.float32, device=state.keys.device)
        return self._features


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
