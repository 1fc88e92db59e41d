"""What a cache holds, as numbers and as a table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerReport:
    """What one layer holds; ``slots`` has an entry per KV head, row by row."""

    layer: int
    slots: tuple[int, ...]
    kv_bytes: int
    overhead_bytes: int
    compress_s: float
    compressed: bool


@dataclass(frozen=True)
class CacheReport:
    """What a cache holds. Print it for a table.

    Args:
        seen_tokens: tokens seen.
        layers: one entry per layer.
        probe_s: seconds spent on probes.
        waited: whether the full cache was held until the prompt's forward was over.
    """

    seen_tokens: int
    layers: tuple[LayerReport, ...]
    probe_s: float = 0.0
    waited: bool = False

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values over all layers."""
        return sum(layer.kv_bytes for layer in self.layers)

    @property
    def overhead_bytes(self) -> int:
        """Bytes of positions, masses and biases over all layers."""
        return sum(layer.overhead_bytes for layer in self.layers)

    @property
    def compress_s(self) -> float:
        """Seconds spent compressing."""
        return sum(layer.compress_s for layer in self.layers)

    def __str__(self) -> str:
        lines = [f"{'layer':>5}  {'slots per KV head':<24} {'KV MB':>8} {'overhead MB':>12} {'compress s':>11}"]
        for layer in self.layers:
            found = sorted(set(layer.slots))
            slots = " ".join(map(str, found)) if len(found) <= 4 else f"{found[0]} to {found[-1]}"
            slots += "" if layer.compressed else "  (not compressed)"
            lines.append(
                f"{layer.layer:>5}  {slots:<24} {layer.kv_bytes / 2**20:>8.3f} {layer.overhead_bytes / 2**20:>12.3f} "
                f"{layer.compress_s:>11.4f}"
            )
        lines.append(
            f"total  {self.seen_tokens} tokens seen{'':<12} {self.kv_bytes / 2**20:>8.3f} "
            f"{self.overhead_bytes / 2**20:>12.3f} {self.compress_s:>11.4f}"
        )
        if self.waited:
            probe = f", then probed in {self.probe_s:.3f} s" if self.probe_s else ""
            lines.append(f"the full cache was held until the prompt's forward was over{probe}")
        return "\n".join(lines)
