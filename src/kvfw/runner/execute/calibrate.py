"""Makes calibration files: a model reads a text piece by piece, and a part learns from what is observed."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvfw.core.compose.build import Built, build_part, part_class
from kvfw.core.contracts.calibration import CalibratedPart, Piece, to_bytes
from kvfw.core.parts.part import Part
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.errors import OptionError, PromptError, RunError
from kvfw.model.cache.fingerprint import fingerprint
from kvfw.model.load.load import LoadedModel, open_model
from kvfw.model.run.prefill import prefill
from kvfw.model.session.probing import check_probes
from kvfw.store.atomic import write_atomic

#: First tokens of every piece, which a part may leave out as sinks.
SINKS = 4


@dataclass(frozen=True)
class CalibrationRequest:
    """What to calibrate.

    Args:
        part: text of the part, such as ``expected`` or ``kvzap(ridge=0.01)``.
        text: a UTF-8 text file.
        model, device, dtype, trust_remote_code: as for an evaluation.
        length: tokens of a piece.
        pieces: how many pieces are read, evenly spaced over the text.
        out: the file; None names it after part and model.
    """

    part: str
    text: Path
    model: str = "smollm2-135m"
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    length: int = 1024
    pieces: int = 32
    out: Path | None = None


@dataclass(frozen=True)
class Calibrated:
    """A written file, and the figures about the fit."""

    path: Path
    figures: dict[str, float]


def calibrate(
    asked: CalibrationRequest, registry: Registry | None = None, tell: Callable[[str], None] = lambda text: None
) -> Calibrated:
    """Makes a calibration file; everything is checked before weights load.

    Raises:
        RequestError: no such part, or one that takes no file; a text that cannot be read or is too short.
        RunError: the part learned NaN or infinity.
        StoreError: the file cannot be written.
    """
    found = registry if registry is not None else default_registry()
    name = asked.part.partition("(")[0].strip()
    part = _part(asked.part, name, found)
    if asked.length < 64 or asked.pieces < 1:
        raise OptionError(f"--length is {asked.length} and --pieces is {asked.pieces}; use 64 and 1, or more")
    try:
        text = asked.text.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"the calibration text {asked.text} cannot be read as UTF-8: {error}") from None
    model_name = re.sub(r"[^\w.-]+", "-", asked.model.rstrip("/").rpartition("/")[2])
    out = asked.out if asked.out is not None else Path(f"{name}-{model_name}.safetensors")
    if out.is_dir():
        raise OptionError(f"--out {out} is a folder; name a file in it")
    opened = open_model(asked.model, trust_remote_code=asked.trust_remote_code, registry=found)
    ids = opened.tokenizer.encode(text, add_special_tokens=False)
    whole = len(ids) // asked.length
    if not whole:
        raise PromptError(
            f"the calibration text {asked.text} has {len(ids)} tokens, and a piece has {asked.length}; give a longer "
            "text, or a smaller --length"
        )
    check_probes(part.calibration_needs, opened.tokenizer, None)
    loaded = opened.load(device=asked.device, dtype=asked.dtype)
    count = min(asked.pieces, whole)
    starts = [asked.length * (whole * i // count) for i in range(count)]
    tensors = learned_from(part, loaded, [ids[at : at + asked.length] for at in starts], tell)
    if broken := [key for key, each in tensors.items() if not bool(torch.isfinite(each).all())]:
        raise RunError(
            f"{asked.part} learned numbers that are not finite ({broken[0]}) from {asked.text}; nothing was written"
        )
    source = {"name": asked.text.name, "sha256": hashlib.sha256(text.encode()).hexdigest(), "pieces": count}
    source["length"] = asked.length
    write_atomic(out, to_bytes(type(part).__name__, fingerprint(loaded.model), source, text, tensors))
    return Calibrated(out, {key: float(each) for key, each in tensors.items() if "." not in key})


@torch.inference_mode()
def learned_from(
    part: CalibratedPart, loaded: LoadedModel, pieces: list[list[int]], tell: Callable[[str], None]
) -> dict[str, Tensor]:
    """What the part learns from pieces of token ids, each read by itself."""

    def observed() -> Iterator[Piece]:
        for number, ids in enumerate(pieces, start=1):
            tell(f"piece {number} of {len(pieces)}")
            needs = part.calibration_needs
            yield prefill(loaded.model, ids, needs, sinks=SINKS, recent=0, vocabulary=loaded.tokenizer).observations

    return part.calibrate(observed())


def _part(text: str, name: str, registry: Registry) -> CalibratedPart:
    for kind in (Kind.SCORER, Kind.ALLOCATOR):
        if any(spec.name == name for spec in registry.of_kind(kind)):
            built: Built[Part] = build_part(kind, text, registry)
            if isinstance(built.value, CalibratedPart):
                if built.value.file is not None:
                    raise OptionError(f"{text} has a calibration file already; leave out file=")
                return built.value
    known = [
        spec.name
        for kind in (Kind.SCORER, Kind.ALLOCATOR)
        for spec in registry.of_kind(kind)
        if issubclass(part_class(spec), CalibratedPart)
    ]
    raise OptionError(f"{name!r} is no part that takes a calibration file; those are {', '.join(known)}")
