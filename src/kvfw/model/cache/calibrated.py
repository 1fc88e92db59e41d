"""Checks that calibration files belong to the model that runs."""

from collections.abc import Callable, Iterable

from kvfw.core.contracts.calibration import calibrations
from kvfw.errors import UnsupportedError
from kvfw.model.cache.fingerprint import Fingerprint, differences


def check_calibrated(parts: Iterable[object], seen: Callable[[], Fingerprint]) -> None:
    """Refuses a calibration file of another model. Precision may differ: the same numbers serve.

    Args:
        parts: parts, some of which may hold others.
        seen: gives the model's fingerprint, or only its shape as long as there are no weights; called only for a file.

    Raises:
        UnsupportedError: naming the file and what differs.
    """
    files = calibrations(parts)
    model = seen() if files else {}
    for file, held in files.items():
        ours = {"weights": held.model.get("weights"), **model, "dtype": held.model.get("dtype")}
        if said := differences(held.model, ours):
            raise UnsupportedError(
                f"calibration file {file!r} was made with another model: {said}. Use that model, or make a file for "
                "this one with kvfw calibrate"
            )
