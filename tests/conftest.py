"""Fixtures that every room's tests may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvfw.model.load import LoadedModel


@pytest.fixture(scope="session")
def smollm() -> LoadedModel:
    """The embedded language model in float32 on the CPU, shared by all tests: leave it as you found it."""
    from kvfw.model.load import load_model

    return load_model("smollm2-135m", device="cpu")
