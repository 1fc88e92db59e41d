"""transformers' progress bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_bars() -> Iterator[None]:
    """Hides them inside the block: local models load in a moment."""
    import transformers.utils.logging

    logging: Any = transformers.utils.logging
    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
