"""Calibration: numbers that a part learns from a text read by one model, and the file that holds them."""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PrivateAttr
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from kvfw.core.parts.files import FileOption
from kvfw.core.parts.part import Part, with_held
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.shingles import sketch

#: Key of the file's only metadata entry.
HEADER = "kvfw_calibration"
VERSION = 1
_SKETCH = "sketch"

#: What the layers showed while the model read one piece of the text, by layer.
Piece = Mapping[int, Observation]


@dataclass(frozen=True)
class Calibration:
    """What a calibration file holds.

    Args:
        part: class of the part that it was made for.
        model: fingerprint of the model.
        text: name, SHA-256 and number of pieces of the text.
        tensors: by ``"LAYER.NAME"``; a name without a layer is a figure about the fit.
        sketch: of the text; see :mod:`kvfw.core.state.shingles`.
        sha256: of the file; equal files are equal calibrations.
    """

    part: str
    model: dict[str, Any] = field(compare=False)
    text: dict[str, Any] = field(compare=False)
    tensors: Mapping[str, Tensor] = field(compare=False, repr=False)
    sketch: frozenset[int] = field(compare=False, repr=False)
    sha256: str = ""


def to_bytes(
    part: str, model: dict[str, Any], source: dict[str, Any], text: str, tensors: Mapping[str, Tensor]
) -> bytes:
    """A calibration as a safetensors file; arguments as in :class:`Calibration`, ``text`` is the whole text."""
    header = {"version": VERSION, "part": part, "model": model, "text": source}
    plain = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    passages = torch.tensor(sorted(sketch(text)), dtype=torch.int64)
    return save({**plain, _SKETCH: passages}, {HEADER: json.dumps(header)})


def read_calibration(file: str, part: str) -> Calibration:
    """The calibration in a file.

    Raises:
        ValueError: there is no such file, it is no whole calibration file, or it was made for another part.
    """
    again = "make one with: kvfw calibrate"
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"the calibration file {file!r} cannot be read ({error.strerror}); {again}") from None
    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][HEADER])
        passages = frozenset(tensors.pop(_SKETCH).tolist())
        found = Calibration(
            header["part"],
            dict(header["model"]),
            dict(header["text"]),
            tensors,
            passages,
            hashlib.sha256(data).hexdigest(),
        )
        version = header["version"]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file!r} is no calibration file, or a part of one ({type(error).__name__}); {again}"
        ) from None
    if version != VERSION:
        raise ValueError(f"{file!r} is of version {version!r}, and this kvfw reads version {VERSION}; {again}")
    if found.part != part:
        raise ValueError(f"{file!r} was made for {found.part}, not for {part}; {again}")
    if broken := [name for name, each in tensors.items() if not bool(torch.isfinite(each).all())]:
        raise ValueError(f"{file!r} holds numbers that are not finite ({broken[0]}); {again}")
    return found


class CalibratedPart(Part):
    """Base of parts that can take numbers from a calibration file, made by ``kvfw calibrate`` for one model.

    Without a file a part takes them from the prompt itself. A subclass says what it observes of a text
    (``calibration_needs``) and what it learns from it (``calibrate``); it reads that by :meth:`learned`.
    """

    file: Annotated[str | None, FileOption()] = Field(None, description="calibration file, from kvfw calibrate")
    _calibration: Calibration | None = PrivateAttr(None)

    def model_post_init(self, context: Any, /) -> None:
        """Reads and checks the file; a ValueError says what is wrong with it."""
        if self.file is not None:
            self._calibration = read_calibration(self.file, type(self).__name__)

    @property
    def calibration(self) -> Calibration | None:
        """What the file holds; None without one."""
        return self._calibration

    @property
    @abstractmethod
    def calibration_needs(self) -> Needs:
        """What must be observed of a text for :meth:`calibrate`."""

    @abstractmethod
    def calibrate(self, pieces: Iterable[Piece]) -> dict[str, Tensor]:
        """What it learns: tensors by ``"LAYER.NAME"``, and figures about the fit by a name alone.

        Args:
            pieces: what a model's layers showed of one piece of the text after another, each of one row; to be looked
                at once, since each is observed when it is asked for.
        """

    def learned(self, name: str, layer: int, device: torch.device) -> Tensor | None:
        """A tensor of the file; None without a file.

        Raises:
            ValueError: the file does not have it.
        """
        if self._calibration is None:
            return None
        found = self._calibration.tensors.get(f"{layer}.{name}")
        if found is None:
            raise ValueError(f"the calibration file {self.file!r} has nothing about layer {layer} ({name})")
        return found.to(device)


def calibrations(parts: Iterable[object]) -> dict[str, Calibration]:
    """The calibration files that the parts, or parts they hold, take: by path as written."""
    calibrated = [part for part in with_held(parts) if isinstance(part, CalibratedPart)]
    return {
        part.file: part.calibration for part in calibrated if part.file is not None and part.calibration is not None
    }
