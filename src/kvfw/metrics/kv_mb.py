"""Bytes of the prompt's cache after compression."""

from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, MetricPart, Value
from kvfw.core.contracts.records import MetricInfo

BYTES_PER_MB = 2**20


class KVMegabytes(MetricPart):
    """Bytes of keys and values that the prompt's cache really holds after compression, in units of 2^20 bytes.

    Measured on the tensors' storage, including sinks, recent tokens, sliding-window layers and the tokens appended
    exactly after a question-agnostic compression.

    Source: the founding experiment's quantity. Its published values are higher than its settings allow; these are the
    bytes really held.
    """

    info: ClassVar[MetricInfo] = MetricInfo(name="kv_mb", title="KV MB", unit="MB", digits=2, higher_is_better=False)

    def measure(self, evidence: Evidence) -> Value:
        """Megabytes (2^20 bytes)."""
        return evidence.kv_bytes / BYTES_PER_MB


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
