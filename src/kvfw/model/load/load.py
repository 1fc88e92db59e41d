"""Opens a model: its configuration, tokenizer and weights, each read once, on demand.

Weights are read from safetensors only, and code that comes with a model runs only if allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kvfw.core.registry.registry import Registry
from kvfw.model.load.devices import check_attention, choose_device, choose_dtype
from kvfw.model.load.files import ModelFiles, find_files
from kvfw.model.load.hub import HubQuestion, ask_hub
from kvfw.model.load.sources import ModelSource, resolve_model

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run: in evaluation mode, on its device, without gradients.

    Attributes:
        model: the transformers model.
        tokenizer: its tokenizer; pads on the left, and has a padding token wherever the model has an end token.
        source: where both came from.
        config: the model's configuration.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: ModelSource
    config: PreTrainedConfig


class OpenModel:
    """One model; it is fetched, and the hub asked about it (``ask``), at most once, when something is first read."""

    def __init__(self, source: ModelSource, *, trust_remote_code: bool = False, ask: HubQuestion = ask_hub) -> None:
        self.source = source
        self._trust, self._ask = trust_remote_code, ask
        self._loaded: dict[tuple[str, str, str | None], LoadedModel] = {}

    @cached_property
    def _files(self) -> ModelFiles:
        return find_files(self.source, self._ask, trusted=self._trust)

    @cached_property
    def any_config(self) -> PreTrainedConfig:
        """The configuration, whether kvfw can compress the model or not; no weights are read.

        Raises:
            UnknownNameError, FetchError, UnsupportedError: no such model; no download; an unreadable configuration.
        """
        return self._files.read_config()

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The configuration of a model that kvfw can compress; no weights are read.

        Raises:
            UnknownNameError, FetchError: as for ``any_config``.
            UnsupportedError: transformers knows no such causal language model or cannot use its configuration, or kvfw
                cannot compress it.
        """
        from kvfw.model.inspect.support import causal_class, check_kind, check_supported

        config = self.any_config
        name = f"{self.source.name!r} ({config.model_type})"
        check_kind(config, name)
        check_supported(config, name, causal_class(config))
        return config

    @cached_property
    def depth(self) -> int:
        """Number of the model's layers, from its configuration alone. Errors as for ``config``."""
        from kvfw.model.inspect.support import fresh_layers

        return len(fresh_layers(self.config))

    @cached_property
    def compressed_heads(self) -> dict[int, int]:
        """KV heads of every layer that is compressed, by its index; no weights are read. Errors as for ``config``."""
        from kvfw.model.inspect.layers import anatomy

        return {part.index: part.kv_heads for part in anatomy(self.skeleton).compressible}

    @cached_property
    def skeleton(self) -> PreTrainedModel:
        """The model without weights (:mod:`kvfw.model.inspect.skeleton`). Errors as for ``config``."""
        from kvfw.model.inspect.skeleton import skeleton

        return skeleton(self.config, self.source.name, trust_remote_code=self._trust)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, set to pad on the left as generation needs it; no weights are read.

        Raises:
            UnknownNameError, FetchError: as for ``any_config``.
            UnsupportedError: its files cannot be used.
        """
        return self._files.read_tokenizer()

    def load(self, *, dtype: str = "auto", device: str = "auto", attn_implementation: str | None = None) -> LoadedModel:
        """The model with its weights, read once for the same arguments; see :func:`load_model`."""
        key = (dtype, device, attn_implementation)
        if key not in self._loaded:
            self._loaded[key] = self._read(*key)
        return self._loaded[key]

    def _read(self, dtype: str, device: str, attn_implementation: str | None) -> LoadedModel:
        where = choose_device(device)
        numbers = choose_dtype(dtype, where)
        check_attention(attn_implementation, self._trust)
        config, tokenizer = self.config, self.tokenizer
        model = self._files.read_weights(config, numbers, attn_implementation)
        module: torch.nn.Module = model  # transformers narrows `to` to what mypy cannot follow
        module.to(where).eval().requires_grad_(False)
        return LoadedModel(model, tokenizer, self.source, model.config)


def open_model(
    name: str = DEFAULT_MODEL,
    *,
    trust_remote_code: bool = False,
    registry: Registry | None = None,
    ask: HubQuestion = ask_hub,
) -> OpenModel:
    """Opens a model by name, without using the network yet; names and errors as for :func:`resolve_model`.

    Args:
        name: an embedded model's, a plugin's, a folder, or a hub id ``owner/model``.
        trust_remote_code: let code that comes with the model run.
        registry: where plugins' models are looked up; the installed ones by default.
        ask: asks the hub.
    """
    return OpenModel(resolve_model(name, registry), trust_remote_code=trust_remote_code, ask=ask)


def load_model(
    source: str = DEFAULT_MODEL,
    *,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> LoadedModel:
    """Loads a causal language model with its tokenizer.

    Args:
        source: an embedded model's name, a plugin's, a folder, or a hub id ``owner/model``.
        dtype: ``float32``, ``float16``, ``bfloat16``, or ``auto``: float32 on a CPU, elsewhere the checkpoint's.
        device: a torch device, or ``auto``: the first available of cuda, mps, cpu.
        trust_remote_code: let code that comes with the model run.
        attn_implementation: one of transformers' attention implementations; None leaves the choice to it.

    Raises:
        UnknownNameError: no such model.
        OptionError: a dtype, device or attention implementation that does not exist here.
        FetchError: the model could not be downloaded.
        UnsupportedError: not a causal language model; weights missing or not in safetensors; or it needs its own code,
            which is not allowed to run.
    """
    opened = open_model(source, trust_remote_code=trust_remote_code)
    return opened.load(dtype=dtype, device=device, attn_implementation=attn_implementation)
