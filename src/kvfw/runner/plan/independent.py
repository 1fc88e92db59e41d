"""Checks that a task does not test on the text that a calibration file was made from."""

from collections.abc import Iterable, Iterator, Sequence

from kvfw.core.contracts.blame import blamed
from kvfw.core.contracts.calibration import calibrations
from kvfw.core.contracts.task import Sample, Task, Tokenizer
from kvfw.core.state.shingles import ALLOWED, shared, sketch
from kvfw.errors import OptionError


def check_independent(
    parts: Iterable[object], task: Task, name: str, samples: Sequence[Sample], tokenizer: Tokenizer
) -> None:
    """Refuses calibration files whose text shares passages with a context, or with a text that contexts are cut from.

    Raises:
        OptionError: naming the file and the share.
    """
    files = calibrations(parts)
    if not files:
        return
    for what, text in _texts(task, name, samples, tokenizer):
        there = sketch(text)
        for file, calibration in files.items():
            if (share := shared(calibration.sketch, there)) > ALLOWED:
                raise OptionError(
                    f"calibration file {file!r} was made from {calibration.text.get('name')!r}, which shares "
                    f"{share:.0%} of its passages with {what} of task {name!r}: it would be tested on what it has "
                    "learned. Calibrate on another text"
                )


def _texts(task: Task, name: str, samples: Sequence[Sample], tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    sources = getattr(task, "sources", None)
    if sources is not None:
        with blamed(f"task {name!r}"):
            yield from (("the source text", text) for text in sources())
    for ids in dict.fromkeys(sample.context_ids for sample in samples):
        yield "a context", str(tokenizer.decode(list(ids), skip_special_tokens=True))
