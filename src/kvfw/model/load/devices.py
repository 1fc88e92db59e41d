"""Devices, dtypes and attention implementations by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from kvfw.errors import OptionError

if TYPE_CHECKING:
    from typing import Any

    import torch

DTypeName = Literal["auto", "float32", "float16", "bfloat16"]


def choose_device(text: str) -> torch.device:
    """The torch device called ``text``, after a trial allocation on it; ``auto`` is the first of cuda, mps, cpu.

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

    if text not in get_args(DTypeName):
        raise OptionError(f"dtype {text!r} does not exist here; use one of {', '.join(get_args(DTypeName))}")
    if text == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    chosen: torch.dtype = getattr(torch, text)
    return chosen


def check_attention(implementation: str | None, trust_remote_code: bool) -> None:
    """Refuses attention implementations that do not exist here.

    Raises:
        OptionError: unknown to transformers, or a kernel from the hub (a name with a slash) that is not trusted to run.
    """
    from transformers import AttentionInterface

    make_interface: Any = AttentionInterface
    allowed = sorted({"eager", *make_interface().valid_keys()})
    if implementation in (None, *allowed) or ("/" in str(implementation) and trust_remote_code):
        return
    raise OptionError(
        f"attention implementation {implementation!r} does not exist here; use one of {', '.join(allowed)}"
    )


def _no_device(text: str, reason: str) -> OptionError:
    return OptionError(
        f"device {text!r} cannot be used ({reason}); use auto, cpu, cuda, cuda:0, mps, or another torch "
        "device that this machine has"
    )
