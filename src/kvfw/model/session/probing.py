"""Probes: further tokens that attend to a whole cache, are observed, and leave no trace in it.

The probe ``repeat`` asks the model to repeat the prompt, and feeds the prompt's own tokens as the answer (the idea of
KVzip: Kim et al. 2025, arXiv 2505.23416); what is then attended to is what the model needs to reconstruct the text. Any
other probe is the path of a text file, whose text is fed as the user's next message.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from kvfw.core.ops.columns import attention_columns
from kvfw.core.state.observation import Columns, Needs, References
from kvfw.core.state.rope import alike
from kvfw.core.state.state import KVState, exact_state
from kvfw.errors import OptionError, UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.compat.routing import model_attention, own_implementation, routed
from kvfw.model.compat.versions import passed
from kvfw.model.inspect.layers import Anatomy, text_config
from kvfw.model.session.apart import attended_apart, separable, whole_and_causal
from kvfw.model.session.capture import added_columns, joined, logit_options, picked, scale
from kvfw.model.session.hidden import HiddenNorms, hidden_norms

REPEAT: Final = "repeat"
#: What the model is asked, in kvfw's own words.
REQUEST: Final = "\n\nWrite out the text above once more, word for word."
GO_ON: Final = "\n\nWrite out the text above once more, word for word, from here on:"
#: Tokens fed at once: the cache is attended to from this many queries, which bounds the memory of activations.
CHUNK: Final = 2048
#: Tokens of the text before a chunk that say where it goes on.
LEAD: Final = 8
_MARK: Final = "TEXTOFTHEMESSAGE"


@dataclass(frozen=True)
class Observed:
    """What probes showed of one layer; see :class:`kvfw.core.state.observation.Observation`."""

    columns: dict[Columns, Tensor] = field(default_factory=dict)
    references: dict[References, tuple[Tensor, Tensor]] = field(default_factory=dict)


def check_probes(needs: Needs, tokenizer: object, probe_ids: Sequence[int] | None) -> None:
    """Refuses a probe that cannot be made, before the model runs.

    Raises:
        UnsupportedError: neither a tokenizer nor the probe's ids are known.
        OptionError: no such file.
    """
    for name in sorted(needs.probes):
        if probe_ids is None and tokenizer is None:
            raise UnsupportedError(
                f"this composition probes the model ({name}), which takes text; pass tokenizer=, or the probe's token "
                "ids as probe_ids="
            )
        if probe_ids is None and name != REPEAT:
            _check_file(name)


def _check_file(name: str) -> None:
    if not Path(name).is_file():
        raise OptionError(f"probe {name!r} is neither {REPEAT!r} nor a text file that exists")
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the probe file {name!r} cannot be read as UTF-8 text: {error}") from None
    if not text.strip():
        raise OptionError(f"the probe file {name!r} is empty; it is the text that the model reads as a probe")


def probe_texts(name: str, prompt: Sequence[int], tokenizer: Any, probe_ids: Sequence[int] | None) -> list[list[int]]:
    """The token ids to feed, each list over the prompt's cache alone.

    Args:
        name: ``repeat`` or the path of a text file.
        prompt: ids of the prompt's tokens, without padding.
        tokenizer: the model's.
        probe_ids: ids to feed instead.
    """
    if probe_ids is not None or name != REPEAT:
        ids = list(probe_ids or _message(tokenizer, "\n\n" + Path(name).read_text(encoding="utf-8")))
        return [ids[i : i + CHUNK] for i in range(0, len(ids), CHUNK)]
    parts = []
    for start in range(0, len(prompt), CHUNK):
        lead = list(prompt[max(0, start - LEAD) : start])
        parts.append(_message(tokenizer, GO_ON if start else REQUEST) + lead + list(prompt[start : start + CHUNK]))
    return parts


def _message(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text as the end of the user's message, up to where the model writes, by its own chat template."""
    after = ""
    if getattr(tokenizer, "chat_template", None):
        message = [{"role": "user", "content": _MARK}]
        rendered: str = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        after = rendered.rpartition(_MARK)[2]
    return list(tokenizer.encode(text + (after or "\n"), add_special_tokens=False))


class _ProbedLayer(CacheLayerMixin):
    """One row of a layer, seen by a probe: shows its tokens followed by those fed, and keeps nothing."""

    is_sliding = False

    def __init__(self, layer: CompressedLayer, row: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers' own has no annotations
        assert layer.keys is not None
        assert layer.values is not None
        self.state = KVState(*(part[row : row + 1] for part in layer.state.parts))
        self.seen, self.is_initialized = layer.seen, True
        self.handed: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The row's keys and values followed by the new ones."""
        self.handed = torch.cat((self.state.keys, key_states), dim=2)
        return self.handed, torch.cat((self.state.values, value_states), dim=2)

    def get_seq_length(self) -> int:
        """Tokens in the cache."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Tokens that attention will see, from the first."""
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    get_max_cache_shape = get_max_length


class _Probe:
    """Observes the layers while probe tokens attend to a cache; an observer of the model's route."""

    def __init__(self, model: PreTrainedModel, anatomy: Anatomy, needs: Needs) -> None:
        self._model, self._anatomy, self._needs = model, anatomy, needs
        self._base = own_implementation(model)
        self._layers: list[Any] = []
        self._positions = torch.zeros(0)
        self._norms = HiddenNorms()
        self._fed, self._expected = 0, 0
        self._mask: tuple[Tensor | None, bool] | None = None
        self.found: dict[int, Observed] = {}

    def run(self, cache: CompressedCache, row: int, texts: Sequence[Sequence[int]]) -> dict[int, Observed]:
        """Feeds the texts, each over the row of the cache alone."""
        self.found, self._fed, self._expected = {}, 0, sum(map(len, texts))
        with ExitStack() as undo:
            undo.enter_context(routed(self._model, self))
            if any(columns.per_norm for columns in self._needs.columns):
                self._norms = undo.enter_context(hidden_norms(self._model))
            for ids in texts:
                self._feed(cache, row, ids)
                self._fed += len(ids)
        return self.found

    def _feed(self, cache: CompressedCache, row: int, ids: Sequence[int]) -> None:
        at = cache.seen_at
        assert at is not None
        self._layers = [_row_of(layer, row) for layer in cache.layers]
        first = cache.compressed_layers()[0].captured.next[row].to(torch.int64)
        fed = torch.tensor([list(ids)], device=self._model.device)
        self._positions = first + torch.arange(len(ids), device=first.device)
        real = at[row] >= 0
        padding = {} if bool(real.all()) else {"attention_mask": _extended(real, len(ids))}
        self._model(
            input_ids=fed,
            position_ids=self._positions[None].to(fed.device),
            **padding,
            **passed(self._model, Cache(layers=self._layers)),
            use_cache=True,
            logits_to_keep=1,
        )
        # Only one layer's keys with the probe's own are ever in memory.
        self._layers, self._mask = [], None

    def owns(self, module: nn.Module, key: Tensor) -> bool:
        """Whether these keys came from the cache being probed."""
        layer = self._layer(module)
        return layer is not None and layer.handed is key

    def see_padding(self, padding: Tensor | None) -> None:
        """Nothing to remember: padding of the cache is empty slots."""

    def _layer(self, module: nn.Module) -> _ProbedLayer | None:
        index = getattr(module, "layer_idx", None)
        found = self._layers[index] if isinstance(index, int) and index < len(self._layers) else None
        return found if isinstance(found, _ProbedLayer) else None

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own attention, observed."""
        layer, index = self._layer(module), int(module.layer_idx)  # type: ignore[arg-type]
        assert layer is not None
        layer.handed, count, held = None, query.shape[2], layer.state
        positions = self._positions[None].to(device=query.device, dtype=torch.float32)
        before, columns = self.found.get(index, Observed()), self._needs.columns
        apart, state = None, held
        if separable(self._base, held, query, value, kwargs) and self._plainly_masked(
            attention_mask, held.width, count
        ):
            apart = attended_apart(query, key, value, held.width, scale(held, kwargs))
        elif columns:
            real = torch.ones_like(positions, dtype=torch.bool)
            new = exact_state(key[:, :, -count:], value[:, :, -count:], positions, real)
            both = (torch.cat(pair, 2) for pair in zip(held.parts[2:], new.parts[2:], strict=True))
            state = KVState(key, value, *both)
        seen = attention_columns(
            query,
            positions,
            state,
            scale(state, kwargs),
            columns,
            norms=self._norms.of_layer.get(index),
            totals=None if apart is None else apart.totals,
            **logit_options(kwargs),
        )
        ranks, expected = self._fed + torch.arange(count)[None], torch.tensor([self._expected])
        ranks, expected = ranks.to(query.device), expected.to(query.device)
        asked = {each: picked(query, positions, each, ranks, expected) for each in self._needs.references}
        self.found[index] = Observed(
            added_columns(before.columns, {each: part[..., : held.width].clone() for each, part in seen.items()}),
            joined(before.references, asked),
        )
        if apart is not None:
            return apart.output, None
        return model_attention(module, self._base)(module, query, key, value, attention_mask, **kwargs)

    def _plainly_masked(self, mask: Tensor | None, held: int, count: int) -> bool:
        """Like :func:`whole_and_causal`; the layers of a forward share their mask, which is looked at once."""
        if self._mask is None or self._mask[0] is not mask:
            self._mask = mask, whole_and_causal(mask, held, count)
        return self._mask[1]


def _row_of(layer: CacheLayerMixin, row: int) -> CacheLayerMixin:
    if isinstance(layer, CompressedLayer):
        return _ProbedLayer(layer, row)
    # transformers' own layers change their tensors in place.
    copied: Any = copy.deepcopy(layer)
    copied.batch_select_indices(torch.tensor([row], device=copied.keys.device))
    sliding: CacheLayerMixin = copied
    return sliding


def _extended(real: Tensor, count: int) -> Tensor:
    """The mask ``[1, seen + count]`` of a row and of new tokens."""
    return torch.nn.functional.pad(real.to(torch.int64), (0, count), value=1)[None]


@torch.no_grad()
def probed(
    model: PreTrainedModel,
    anatomy: Anatomy,
    cache: CompressedCache,
    needs: Needs,
    tokenizer: Any,
    probe_ids: Sequence[int] | None = None,
) -> dict[int, Observed]:
    """Runs every probe that is needed over an uncompressed cache, row by row; the cache does not change.

    Returns:
        What was observed of each compressible layer, all rows together.

    Raises:
        UnsupportedError: the prompt's ids are not known, or the model rotates the probe's tokens otherwise.
    """
    first = cache.compressed_layers()[0].captured
    if first.seen_ids is None or cache.seen_at is None:
        raise UnsupportedError("a probe needs the prompt's token ids; call the model with input_ids")
    rotary, indices = anatomy.rotary, [part.index for part in anatomy.compressible]
    before = [rotary.read(index) for index in indices]
    found: dict[int, Observed] = {index: Observed() for index in indices}
    with torch.random.fork_rng(_devices(model)), rotary.restored():
        for name in sorted(needs.probes):
            by_row = []
            for row in range(len(first.seen_ids)):
                prompt = first.seen_ids[row][cache.seen_at[row] >= 0].tolist()
                texts = probe_texts(name, prompt, tokenizer, probe_ids)
                _check_positions(model, int(first.next[row]) + max(map(len, texts)))
                by_row.append(_Probe(model, anatomy, needs.of_source(name)).run(cache, row, texts))
            if not all(alike(rope, rotary.read(index)) for rope, index in zip(before, indices, strict=True)):
                raise UnsupportedError(
                    "the probe is so long that this model would change its rotation (dynamic or LongRoPE scaling); use "
                    "a shorter prompt, or a composition without a probe"
                )
            for index in indices:
                rows, whole = [one[index] for one in by_row], found[index]
                whole.columns.update({c: torch.cat([one.columns[c] for one in rows]) for c in rows[0].columns})
                whole.references.update({r: _together([one.references[r] for one in rows]) for r in rows[0].references})
    return found


def _check_positions(model: PreTrainedModel, needed: int) -> None:
    most = getattr(text_config(model), "max_position_embeddings", None)
    if isinstance(most, int) and needed > most:
        raise UnsupportedError(
            f"the prompt and its probe need {needed} positions, and this model has {most}; use a shorter prompt, or a "
            "composition without a probe"
        )


def _together(rows: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Reference queries of all rows; shorter rows get padding on the left."""
    most = max(queries.shape[2] for queries, _ in rows)
    pad = torch.nn.functional.pad
    queries = [pad(q, (0, 0, most - q.shape[2], 0)) for q, _ in rows]
    return torch.cat(queries), torch.cat([pad(p, (most - p.shape[1], 0), value=-1.0) for _, p in rows])


def _devices(model: PreTrainedModel) -> list[int]:
    """CUDA devices whose random state a forward might change."""
    return [int(model.device.index or 0)] if model.device.type == "cuda" else []
