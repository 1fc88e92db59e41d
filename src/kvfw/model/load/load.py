"""Name a model, read its configuration and tokenizer, load its weights.

A model is an embedded one by name, a local folder, or a hub id ``owner/model``. Weights are read from
safetensors only, and code that comes with a model runs only when asked for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.errors import KvfwError, OptionError, RunError, UnknownNameError, UnsupportedError
from kvfw.model.compat.config_errors import cannot_be_used
from kvfw.model.compat.progress_bars import without_bars
from kvfw.model.embedded.folders import EMBEDDED, embedded_folder, ensure_embedded
from kvfw.model.load.hub import HubAnswer, HubQuestion, ask_hub, explain_hub_failure

if TYPE_CHECKING:
    from typing import Any

    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_MODEL = "smollm2-135m"

DTypeName = Literal["auto", "float32", "float16", "bfloat16"]
SourceKind = Literal["embedded", "plugin", "folder", "hub"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from.

    Attributes:
        name: as the user gave it.
        location: the folder, or the hub id. An embedded model's folder need not exist yet; a plugin's model has the
            target that knows its folder.
        kind: ``embedded``, ``plugin``, ``folder`` or ``hub``.
        part: what the plugin announced.
    """

    name: str
    location: str
    kind: SourceKind
    part: PartSpec | None = None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run: in evaluation mode, on its device, without gradients.

    Attributes:
        model: the transformers model.
        tokenizer: its tokenizer; pads on the left, and has a padding token wherever the model has an end
            token.
        source: where both came from.
        config: the model's configuration.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: ModelSource
    config: PreTrainedConfig


def resolve_model(name: str, registry: Registry | None = None) -> ModelSource:
    """Say what ``name`` means, without network and without reading the model.

    In this order: an embedded model's name; the name of a plugin's model; a local folder (``~`` is expanded) with
    ``config.json`` and safetensors weights; a hub id with its owner, ``owner/model``, whose existence is not checked
    here.

    Args:
        name: as the user gave it.
        registry: where plugins' models are looked up; the installed ones by default.

    Raises:
        UnknownNameError: it is none of these, or two plugins claim the name.
        UnsupportedError: a folder with a configuration but without safetensors weights.
    """
    if name in EMBEDDED:
        return ModelSource(name, str(embedded_folder(EMBEDDED[name])), "embedded")
    catalogue = registry if registry is not None else default_registry()
    if catalogue.claimed(Kind.MODEL, name):
        part = catalogue.get(Kind.MODEL, name)
        return ModelSource(name, part.target, "plugin", part)
    folder = _as_folder(name)
    if folder is not None:
        return _folder_source(name, folder)
    if _HUB_ID.fullmatch(name):
        return ModelSource(name, name, "hub")
    embedded = [model.name for model in EMBEDDED.values() if model.kind == "language"]
    brought = [part.name for part in catalogue.of_kind(Kind.MODEL) if part.name not in EMBEDDED]
    known = [*embedded, *brought]
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    guess = f"; did you mean {' or '.join(close)}?" if close else ""
    plugins = f"as one of a plugin ({', '.join(brought)}), " if brought else ""
    raise UnknownNameError(
        f"no model {name!r}{guess}\n"
        f"A model is given as an embedded one ({', '.join(embedded)}), {plugins}as a folder with config.json and "
        "safetensors weights, or as a hub id with its owner (owner/model)."
    )


def load_config(
    source: str | ModelSource, *, trust_remote_code: bool = False, ask: HubQuestion = ask_hub
) -> PreTrainedConfig:
    """Read a model's configuration; no weights are read (an embedded model is fetched if it is not cached).

    Args:
        source: a name as for `resolve_model`, or its result.
        trust_remote_code: let code that comes with the model run.
        ask: how the hub is asked.

    Raises:
        UnknownNameError: no such model.
        FetchError: it could not be downloaded.
        UnsupportedError: it is not a causal language model that transformers knows, one that kvfw cannot compress, or
            has a configuration that transformers cannot use.
    """
    return _checked_config(_place(source, ask), trust_remote_code)


def load_any_config(
    source: str | ModelSource, *, trust_remote_code: bool = False, ask: HubQuestion = ask_hub
) -> PreTrainedConfig:
    """Read a model's configuration, whether kvfw can compress the model or not.

    Args:
        source: a name as for `resolve_model`, or its result; or a file or folder that holds a configuration and
            nothing else.
        trust_remote_code: let code that comes with the model run.
        ask: how the hub is asked.

    Raises:
        UnknownNameError: no such model.
        FetchError: it could not be downloaded.
        UnsupportedError: the configuration cannot be read.
    """
    alone = _lone_config(source) if isinstance(source, str) else None
    return _read_config(_place(alone or source, ask), trust_remote_code)


def _lone_config(name: str) -> ModelSource | None:
    """A configuration without weights: a file, or a folder that has one."""
    path = Path(name).expanduser()
    is_one = name not in EMBEDDED and ((path.suffix == ".json" and path.is_file()) or (path / "config.json").is_file())
    return ModelSource(name, str(path.resolve()), "folder") if is_one else None


def load_tokenizer(
    source: str | ModelSource, *, trust_remote_code: bool = False, ask: HubQuestion = ask_hub
) -> PreTrainedTokenizerBase:
    """Read a model's tokenizer, set to pad on the left as generation needs it; no weights are read.

    Where the tokenizer has no padding token, its end token is used. It does not warn of texts longer than the model's
    positions: prompts are cut out of longer texts, and their own length is checked.

    Args and errors are those of `load_config`.
    """
    place = _place(source, ask)
    tokenizer = _read_tokenizer(place, trust_remote_code)
    # transformers warns once per tokenizer; this says it has.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def load_model(
    source: str | ModelSource = DEFAULT_MODEL,
    *,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
    ask: HubQuestion = ask_hub,
) -> LoadedModel:
    """Load a causal language model with its tokenizer.

    Args:
        source: a name as for `resolve_model`, or its result.
        dtype: ``float32``, ``float16``, ``bfloat16``, or ``auto``: float32 on a CPU, elsewhere what the
            checkpoint is stored in.
        device: a torch device, or ``auto``: the first available of cuda, mps, cpu.
        trust_remote_code: let code that comes with the model run.
        attn_implementation: one of transformers' attention implementations; None leaves the choice to it.
        ask: how the hub is asked.

    Raises:
        UnknownNameError: no such model.
        OptionError: a dtype, device or attention implementation that does not exist here.
        FetchError: the model could not be downloaded.
        UnsupportedError: not a causal language model, weights missing or not in safetensors, or code of its
            own that was not allowed to run.
    """
    from transformers import AutoModelForCausalLM

    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device)
    _check_attention(attn_implementation, trust_remote_code)
    place = _place(source, ask)
    config = _checked_config(place, trust_remote_code)
    if place.answer.has_safetensors is False:
        raise UnsupportedError(f"the hub model {place.source.name!r} has no safetensors weights; only those are read")
    tokenizer = _read_tokenizer(place, trust_remote_code)
    with _explained(place), nullcontext() if place.source.kind == "hub" else without_bars():
        causal: Any = AutoModelForCausalLM
        model: PreTrainedModel
        info: dict[str, Any]
        model, info = causal.from_pretrained(
            place.location,
            config=config,
            dtype=chosen_dtype,
            trust_remote_code=trust_remote_code,
            local_files_only=place.local_only,
            attn_implementation=attn_implementation,
            use_safetensors=True,
            output_loading_info=True,
        )
    # transformers fills missing weights with random numbers and only warns.
    if missing := sorted(info["missing_keys"]):
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise UnsupportedError(
            f"{place.source.name!r} lacks {len(missing)} weights of a causal language model ({shown}); "
            "give a complete checkpoint"
        )
    torch_module: torch.nn.Module = model  # transformers narrows `to` to what mypy cannot follow
    torch_module.to(chosen_device).eval().requires_grad_(False)
    return LoadedModel(model, tokenizer, place.source, model.config)


def choose_device(text: str) -> torch.device:
    """The torch device called ``text``, tried by allocating on it; ``auto`` is the first of cuda, mps, cpu.

    Raises:
        OptionError: no such device on this machine.
    """
    import torch

    if text == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(text)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["unknown reason"])[0]
        raise _no_device(text, reason) from error
    if device.type == "meta":
        raise _no_device(text, "it holds no numbers")
    return device


def choose_dtype(text: str, device: torch.device) -> torch.dtype | Literal["auto"]:
    """The dtype called ``text``; ``auto`` is float32 on a CPU, and elsewhere left to the checkpoint.

    Raises:
        OptionError: not one of the allowed names.
    """
    import torch

    match text:
        case "auto":
            return torch.float32 if device.type == "cpu" else "auto"
        case "float32":
            return torch.float32
        case "float16":
            return torch.float16
        case "bfloat16":
            return torch.bfloat16
        case _:
            raise OptionError(f"dtype {text!r} does not exist here; use one of {', '.join(get_args(DTypeName))}")


@dataclass(frozen=True, slots=True)
class _Place:
    """A source whose files can be read now, or from the hub as far as ``answer`` says."""

    source: ModelSource
    location: str
    answer: HubAnswer

    @property
    def local_only(self) -> bool:
        return not self.answer.reachable


def _place(source: str | ModelSource, ask: HubQuestion) -> _Place:
    resolved = resolve_model(source) if isinstance(source, str) else source
    match resolved.kind:
        case "embedded":
            model = EMBEDDED[resolved.name]
            if model.kind != "language":
                raise UnsupportedError(f"{model.name!r} is a sentence encoder, not a causal language model")
            return _Place(resolved, str(ensure_embedded(model)), HubAnswer(reachable=False))
        case "plugin":
            return _Place(resolved, str(_plugin_folder(resolved)), HubAnswer(reachable=False))
        case "folder":
            return _Place(resolved, resolved.location, HubAnswer(reachable=False))
        case "hub":
            return _Place(resolved, resolved.location, ask(resolved.location))


def _plugin_folder(source: ModelSource) -> Path:
    """The folder a plugin's model lives in; its function may fetch or make it first.

    Raises:
        RequestError: the function cannot be imported.
        RunError: it failed, or gave no folder of a model.
    """
    assert source.part is not None
    who = f"model {source.name!r} of {source.part.provider}"
    find = source.part.load()
    if not callable(find):
        raise UnsupportedError(f"{who}: {source.part.target} is no function that takes the name and returns the folder")
    try:
        folder = Path(find(source.name))
    except KvfwError:
        raise
    except (Exception, SystemExit) as error:
        raise RunError(f"{who} could not be had: {type(error).__name__}: {error}") from error
    try:
        _folder_source(str(folder), folder)
    except KvfwError as error:
        raise RunError(f"{who} is not usable: {error}") from error
    return folder


def _as_folder(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError):  # no such home folder, or characters no path can have
        return None
    return path if is_folder and name else None


def _folder_source(name: str, folder: Path) -> ModelSource:
    if not (folder / "config.json").is_file():
        raise UnknownNameError(f"the folder {name!r} holds no model: it has no config.json")
    if not any((folder / file).is_file() for file in _WEIGHTS):
        raise UnsupportedError(
            f"the folder {name!r} has no safetensors weights ({' or '.join(_WEIGHTS)}); only those are read: "
            "load the model elsewhere and save it with save_pretrained"
        )
    return ModelSource(name, str(folder.resolve()), "folder")


def _checked_config(place: _Place, trust_remote_code: bool) -> PreTrainedConfig:
    from kvfw.model.inspect.support import causal_class, check_kind, check_supported

    config = _read_config(place, trust_remote_code)
    name = f"{place.source.name!r} ({config.model_type})"
    check_kind(config, name)
    check_supported(config, name, causal_class(config))
    return config


def _read_config(place: _Place, trust_remote_code: bool) -> PreTrainedConfig:
    from transformers import AutoConfig

    with _explained(place):
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            place.location, trust_remote_code=trust_remote_code, local_files_only=place.local_only
        )
    _check_architectures(config, place.source.name)
    return config


def _check_architectures(config: PreTrainedConfig, name: str) -> None:
    """transformers keeps whatever stands there."""
    found: object = getattr(config, "architectures", None)
    if found is not None and not (isinstance(found, list) and all(isinstance(one, str) for one in found)):
        raise UnsupportedError(
            f"architectures in config.json of {name!r} is {found!r}; it must be a list of class names, such as "
            '["LlamaForCausalLM"]'
        )


def _read_tokenizer(place: _Place, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    with _explained(place, "the tokenizer files"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            place.location,
            trust_remote_code=trust_remote_code,
            local_files_only=place.local_only,
            padding_side="left",
        )
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _check_attention(implementation: str | None, trust_remote_code: bool) -> None:
    from transformers import AttentionInterface

    make_interface: Any = AttentionInterface

    if implementation is None:
        return
    allowed = sorted({"eager", *make_interface().valid_keys()})
    # A name with a slash is a kernel that is downloaded from the hub and run.
    if implementation in allowed or ("/" in implementation and trust_remote_code):
        return
    raise OptionError(
        f"attention implementation {implementation!r} does not exist here; use one of {', '.join(allowed)}"
    )


def _no_device(text: str, reason: str) -> OptionError:
    return OptionError(
        f"device {text!r} cannot be used ({reason}); use auto, cpu, cuda, cuda:0, mps, or another torch "
        "device that this machine has"
    )


@contextmanager
def _explained(place: _Place, files: str = "config.json") -> Iterator[None]:
    """Turn what transformers raises about a model's files into one error for the user; ``files`` are read in it."""
    from safetensors import SafetensorError

    try:
        yield
    except KvfwError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        if "trust_remote_code" in str(error):
            raise UnsupportedError(
                f"{place.source.name!r} needs code that comes with it; allow it with trust_remote_code=True "
                "if you trust its author"
            ) from error
        if isinstance(error, ImportError):
            raise UnsupportedError(f"{place.source.name!r} needs a package that is missing: {error}") from error
        if place.source.kind == "hub":
            raise explain_hub_failure(place.source.name, place.answer, error) from error
        raise UnsupportedError(f"{place.source.name!r} ({place.location}) cannot be loaded: {error}") from error
    except Exception as error:
        # What transformers raises for a value it cannot use is of any kind.
        raise cannot_be_used(repr(place.source.name), error, files) from error
