"""What the compressed contexts of a task really held."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from kvfw.model.cache.report import CacheReport


@dataclass(frozen=True)
class HeldContext:
    """One context in the cache.

    Args:
        tokens: tokens that the cache has seen.
        slots_per_head: mean over the KV heads of layers that can be compressed.
        kv_bytes: bytes of keys and values over all layers.
        full_kv_bytes: the same without compression.
    """

    tokens: int
    slots_per_head: float
    kv_bytes: int
    full_kv_bytes: int

    @property
    def compressed(self) -> bool:
        """Whether anything was left out: slots are fewer than tokens."""
        return self.slots_per_head < self.tokens

    @classmethod
    def of(cls, report: CacheReport, bytes_per_token: int, compressible: Sequence[int]) -> "HeldContext":
        """What a report says. ``bytes_per_token``: over the ``compressible`` layers, uncompressed."""
        slots = [count for index in compressible for count in report.layers[index].slots]
        windows = sum(layer.kv_bytes for layer in report.layers if layer.layer not in compressible)
        full = report.seen_tokens * bytes_per_token + windows
        return cls(report.seen_tokens, fmean(slots), report.kv_bytes, full)


def realised(held: Sequence[HeldContext]) -> dict[str, int | float]:
    """The realised size of a task's contexts: counts, and means per context.

    ``size_ratio`` is the full caches' bytes by those really held, sinks and recent tokens included, so it is below the
    ratio asked for. Nothing but the counts without contexts.
    """
    counts: dict[str, int | float] = {
        "contexts": len(held),
        "contexts_compressed": sum(each.compressed for each in held),
    }
    if not held:
        return counts
    kv, full = fmean(each.kv_bytes for each in held), fmean(each.full_kv_bytes for each in held)
    return {
        **counts,
        "tokens": fmean(each.tokens for each in held),
        "slots_per_head": fmean(each.slots_per_head for each in held),
        "kv_bytes": kv,
        "full_kv_bytes": full,
        "size_ratio": full / kv,
    }


def realised_text(task: str, held: Sequence[HeldContext]) -> str:
    """The realised size in a line."""
    found = realised(held)
    said = f"task {task}: {found['contexts_compressed']} of {found['contexts']} contexts compressed"
    if not held:
        return said
    return (
        f"{said}; on average {found['tokens']:.1f} tokens in {found['slots_per_head']:.1f} slots per KV head, "
        f"{found['kv_bytes'] / 2**20:.2f} of {found['full_kv_bytes'] / 2**20:.2f} MB, {found['size_ratio']:.2f} times "
        "smaller"
    )
