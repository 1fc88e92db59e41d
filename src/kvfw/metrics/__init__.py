"""kvfw's own metrics, announced through the plugin hook. Nothing here imports torch."""

from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.hooks import hookimpl


@hookimpl
def kvfw_parts() -> tuple[PartSpec, ...]:
    """The built-in metrics, in table order."""
    here = "kvfw.metrics"
    return (
        PartSpec(Kind.METRIC, "ref_ppl", f"{here}.ref_ppl:RefPPL", "perplexity of the full cache's own response"),
        PartSpec(
            Kind.METRIC, "delta_nll", f"{here}.delta_nll:DeltaNLL", "surprise at that response, beyond full's own"
        ),
        PartSpec(Kind.METRIC, "kl", f"{here}.shift:KL", "divergence of next-token distributions from full's"),
        PartSpec(Kind.METRIC, "agreement", f"{here}.shift:Agreement", "how often the likeliest next token is full's"),
        PartSpec(Kind.METRIC, "self_ppl", f"{here}.self_ppl:SelfPPL", "perplexity of the method's own response"),
        PartSpec(
            Kind.METRIC, "embed_cos", f"{here}.embed_cos:EmbedCosine", "sentence-embedding cosine to full's response"
        ),
        PartSpec(
            Kind.METRIC, "hidden_cos", f"{here}.hidden_cos:HiddenCosine", "hidden-state cosine to full's response"
        ),
        PartSpec(
            Kind.METRIC,
            "hidden_cos_centred",
            f"{here}.hidden_cos:CentredHiddenCosine",
            "the same, without what all responses share",
        ),
        PartSpec(Kind.METRIC, "kv_mb", f"{here}.kv_mb:KVMegabytes", "bytes of keys and values really held"),
        PartSpec(
            Kind.METRIC, "kv_overhead_mb", f"{here}.kv_mb:OverheadMegabytes", "bytes of positions, masses, biases"
        ),
        PartSpec(Kind.METRIC, "peak_kv_mb", f"{here}.kv_mb:PeakMegabytes", "largest cache held while answering"),
        PartSpec(Kind.METRIC, "tok_s", f"{here}.tok_s:TokensPerSecond", "decode speed at batch 1"),
        PartSpec(Kind.METRIC, "span_kept", f"{here}.span_kept:SpanKept", "share kept of what the answer needs"),
    )
