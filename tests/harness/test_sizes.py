"""Realised sizes, worked out by hand."""

import pytest

from kvfw.harness.sizes import HeldContext, realised, realised_text
from kvfw.model.cache.report import CacheReport, LayerReport


def report(tokens: int, slots: tuple[int, int], kv_bytes: int) -> CacheReport:
    """Layer 0 has a sliding window of 40 bytes, layer 1 two heads that can be compressed."""
    layers = (LayerReport(0, (5,), 40, 0, 0.0, False), LayerReport(1, slots, kv_bytes, 9, 0.0, True))
    return CacheReport(tokens, layers)


def test_a_window_counts_in_bytes_and_not_in_slots() -> None:
    held = HeldContext.of(report(100, (10, 30), 320), bytes_per_token=16, compressible=[1])
    assert held == HeldContext(tokens=100, slots_per_head=20, kv_bytes=360, full_kv_bytes=1640)
    assert held.compressed


def test_a_task_has_means_and_the_ratio_of_all_bytes() -> None:
    whole = HeldContext.of(report(20, (20, 20), 320), bytes_per_token=16, compressible=[1])
    assert not whole.compressed
    found = realised([HeldContext(100, 20, 360, 1640), whole])
    assert found == {
        "contexts": 2,
        "contexts_compressed": 1,
        "tokens": 60,
        "slots_per_head": 20,
        "kv_bytes": 360,
        "full_kv_bytes": 1000,
        "size_ratio": pytest.approx(1000 / 360),
    }


def test_nothing_held_has_no_size() -> None:
    assert realised([]) == {"contexts": 0, "contexts_compressed": 0}
    assert realised_text("choice", []) == "task choice: 0 of 0 contexts compressed"
