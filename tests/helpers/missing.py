"""What a test needs and a machine may lack: a skip at a user's desk, a failure where nothing may go unseen."""

import os
from typing import NoReturn

import pytest


def lacking(what: str) -> NoReturn:
    """Skips the test; fails it in continuous integration, which has to have everything."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{what}, so this goes untested")
    pytest.skip(what)
