"""Similarity of sentence embeddings."""

from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, MetricPart, Missing, Value
from kvfw.core.contracts.records import MetricInfo


class EmbedCosine(MetricPart):
    """Cosine of the all-MiniLM-L6-v2 embeddings of the response and of the full cache's response.

    ``e(y) . e(y_full) / (|e(y)| |e(y_full)|)``. Responses are a few words long, so two that differ only in the one word
    that matters are still similar.

    Source: the founding experiment. Sentence embeddings: Reimers and Gurevych 2019, Sentence-BERT, arXiv 1908.10084.
    """

    info: ClassVar[MetricInfo] = MetricInfo(name="embed_cos", title="Embed cos", digits=4, higher_is_better=True)

    def measure(self, evidence: Evidence) -> Value:
        """-1 to 1."""
        if evidence.turn.follow_ids:
            return Missing("the response was fed to the model, which wrote none")
        if not evidence.response.text.strip() or not evidence.reference.text.strip():
            return Missing("an empty response has no sentence embedding")
        return evidence.engine.similarity(evidence.response.text, evidence.reference.text)
