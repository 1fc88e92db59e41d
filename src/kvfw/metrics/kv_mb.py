"""Bytes of the prompt's cache after compression."""

from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, MetricPart, Missing, Value
from kvfw.core.contracts.records import MetricInfo

BYTES_PER_MB = 2**20


class KVMegabytes(MetricPart):
    """Bytes of keys and values that the prompt's cache really holds after compression, in units of 2^20 bytes.

    Measured on the tensors' storage, codes with their scales in place of what a codec coded. Sinks, recent tokens,
    sliding-window layers and the tokens appended exactly after a question-agnostic compression are included.

    Source: the founding experiment's quantity. Its published values are higher than its settings allow; these are the
    bytes really held.
    """

    info: ClassVar[MetricInfo] = MetricInfo(name="kv_mb", title="KV MB", unit="MB", digits=2, higher_is_better=False)

    def measure(self, evidence: Evidence) -> Value:
        """Megabytes (2^20 bytes)."""
        return evidence.kv_bytes / BYTES_PER_MB


class PeakMegabytes(MetricPart):
    """The largest cache a row ever held while it answered, bytes of keys and values in units of 2^20.

    Measured with ``--compress-every`` only, between forwards: after the prompt's compression, after the question of a
    question-agnostic run (before a compression that it may bring about), and after each token of the response. The full
    cache's peak is the one at its end.

    Source: kvfw's own addition, because a cache that is compressed while decoding is bounded by what it grows to.
    """

    info: ClassVar[MetricInfo] = MetricInfo(
        name="peak_kv_mb", title="Peak KV MB", unit="MB", digits=2, higher_is_better=False
    )
    only_with: ClassVar[str] = "compress_every"

    def measure(self, evidence: Evidence) -> Value:
        """Megabytes (2^20 bytes)."""
        if evidence.peak_bytes is None:
            return Missing("the response was not decoded token by token")
        return evidence.peak_bytes / BYTES_PER_MB


class OverheadMegabytes(MetricPart):
    """Bytes of positions, masses and biases beside the keys and values, in units of 2^20 bytes.

    Three float32 numbers per slot: for every KV head of a compressed layer, shared by all heads of an uncompressed one.

    Source: kvfw's own addition, because what a method stores beside the cache is not free.
    """

    info: ClassVar[MetricInfo] = MetricInfo(
        name="kv_overhead_mb", title="KV overhead MB", unit="MB", digits=3, higher_is_better=False
    )

    def measure(self, evidence: Evidence) -> Value:
        """Megabytes (2^20 bytes)."""
        return evidence.overhead_bytes / BYTES_PER_MB
