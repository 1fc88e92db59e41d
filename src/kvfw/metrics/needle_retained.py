"""How much of the needle the compressed cache still holds exactly."""

from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, MetricPart, Missing, Value
from kvfw.core.contracts.records import MetricInfo


class NeedleRetained(MetricPart):
    """Share of the needle's tokens that are kept exactly, mean over layers and KV heads.

    A token counts where a slot of mass 1 stands at its position. It tells keeping from using: a method may hold the
    whole needle and the model may still not find it.

    Source: kvfw's own addition to the founding experiment.
    """

    info: ClassVar[MetricInfo] = MetricInfo(
        name="needle_retained", title="Needle kept", unit="%", digits=1, higher_is_better=True
    )

    def measure(self, evidence: Evidence) -> Value:
        """0 to 1."""
        needle = evidence.prompt.needle
        if not evidence.states or not len(needle):
            return Missing("no compressible layer" if not evidence.states else "the prompt has no needle")
        if not evidence.positions_kept:
            return Missing("keys were re-rotated, so kept tokens cannot be told by position")
        shares = []
        for state in evidence.states.values():
            inside = (state.positions >= needle.start) & (state.positions < needle.stop) & (state.mass == 1)
            # Merged slots may stand at fractional positions inside the needle, with mass above 1; a kept token's
            # position is whole and no two exact slots share one.
            shares.append(float(inside.sum(-1).float().mean()) / len(needle))
        return sum(shares) / len(shares)
