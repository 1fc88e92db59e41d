"""The files of a model: located once, on this machine or with a single question to the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvfw.errors import KvfwError, UnsupportedError
from kvfw.model.compat.config_errors import cannot_be_used
from kvfw.model.compat.progress_bars import without_bars
from kvfw.model.embedded.folders import EMBEDDED, ensure_embedded
from kvfw.model.load.hub import HubAnswer, HubQuestion, explain_hub_failure
from kvfw.model.load.sources import ModelSource, plugin_folder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Readable files, local or on the hub as ``answer`` tells; ``trusted`` lets their code run."""

    source: ModelSource
    location: str
    answer: HubAnswer
    trusted: bool

    @property
    def local_only(self) -> bool:
        """Whether to stay off the network."""
        return not self.answer.reachable

    def read_config(self) -> PreTrainedConfig:
        """The configuration, whether kvfw can compress the model or not."""
        from transformers import AutoConfig

        with self.explained():
            config: PreTrainedConfig = AutoConfig.from_pretrained(
                self.location, trust_remote_code=self.trusted, local_files_only=self.local_only
            )
        _check_architectures(config, self.source.name)
        return config

    def read_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, set to pad on the left; without a padding token it pads with its end token."""
        from transformers import AutoTokenizer

        with self.explained("the tokenizer files"):
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                self.location, trust_remote_code=self.trusted, local_files_only=self.local_only, padding_side="left"
            )
        if tokenizer.pad_token is None and tokenizer.eos_token is not None:
            tokenizer.pad_token = tokenizer.eos_token
        # Marks the warning about long texts as given: kvfw cuts prompts out of longer texts and checks their length.
        tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
        return tokenizer

    def read_weights(
        self, config: PreTrainedConfig, dtype: torch.dtype | Literal["auto"], attn_implementation: str | None
    ) -> PreTrainedModel:
        """The model of a configuration, with all its weights.

        Raises:
            UnsupportedError: weights are missing, or not in safetensors.
        """
        from transformers import AutoModelForCausalLM

        name = repr(self.source.name)
        if self.answer.has_safetensors is False:
            raise UnsupportedError(f"the hub model {name} has no safetensors weights; only those are read")
        causal: Any = AutoModelForCausalLM
        model: PreTrainedModel
        info: dict[str, Any]
        with self.explained(), nullcontext() if self.source.kind == "hub" else without_bars():
            model, info = causal.from_pretrained(
                self.location,
                config=config,
                dtype=dtype,
                trust_remote_code=self.trusted,
                local_files_only=self.local_only,
                attn_implementation=attn_implementation,
                use_safetensors=True,
                output_loading_info=True,
            )
        # transformers fills missing weights with random numbers and only warns.
        if missing := sorted(info["missing_keys"]):
            shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
            raise UnsupportedError(
                f"{name} lacks {len(missing)} weights of a causal language model ({shown}); give a complete checkpoint"
            )
        return model

    @contextmanager
    def explained(self, files: str = "config.json") -> Iterator[None]:
        """Turns any exception of transformers while it reads ``files`` into one error for the user."""
        from safetensors import SafetensorError

        try:
            yield
        except KvfwError:
            raise
        except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
            if "trust_remote_code" in str(error):
                raise UnsupportedError(
                    f"{self.source.name!r} needs code that comes with it; allow it with trust_remote_code=True "
                    "if you trust its author"
                ) from error
            if isinstance(error, ImportError):
                raise UnsupportedError(f"{self.source.name!r} needs a package that is missing: {error}") from error
            if self.source.kind == "hub":
                raise explain_hub_failure(self.source.name, self.answer, error) from error
            raise UnsupportedError(f"{self.source.name!r} ({self.location}) cannot be loaded: {error}") from error
        except Exception as error:  # transformers raises anything for a value it cannot use
            raise cannot_be_used(repr(self.source.name), error, files) from error


def find_files(source: ModelSource, ask: HubQuestion, *, trusted: bool) -> ModelFiles:
    """Finds a model's files: fetches an embedded model that is not cached, or asks the hub.

    Raises:
        UnknownNameError: the hub has no such model.
        FetchError: an embedded model could not be fetched.
        RunError: a plugin could not provide its model.
        UnsupportedError: an embedded model that is no language model.
    """
    location, answer = source.location, HubAnswer(reachable=False)
    if source.kind == "embedded":
        model = EMBEDDED[source.name]
        if model.kind != "language":
            raise UnsupportedError(f"{model.name!r} is a sentence encoder, not a causal language model")
        location = str(ensure_embedded(model))
    elif source.kind == "plugin":
        location = str(plugin_folder(source))
    elif source.kind == "hub":
        answer = ask(location)
    return ModelFiles(source, location, answer, trusted)


def _check_architectures(config: PreTrainedConfig, name: str) -> None:
    """Refuses ``architectures`` that are no list of names, which transformers does not check."""
    found: object = getattr(config, "architectures", None)
    if found is not None and not (isinstance(found, list) and all(isinstance(one, str) for one in found)):
        raise UnsupportedError(
            f"architectures in config.json of {name!r} is {found!r}; it must be a list of class names, such as "
            '["LlamaForCausalLM"]'
        )
