"""Perplexity of a text from its tokens' negative log-likelihoods."""

import math
from collections.abc import Sequence

from kvfw.core.contracts.metric import Missing, Value


def perplexity(nll: Sequence[float], why_none: str) -> Value:
    """``exp(mean NLL)`` of the tokens' ``nll`` (nats), at least 1; missing with the reason ``why_none`` if empty."""
    if not nll:
        return Missing(why_none)
    mean = math.fsum(nll) / len(nll) if all(map(math.isfinite, nll)) else math.inf
    # exp overflows at about 709; only a broken model gets there.
    return math.exp(mean) if mean < 700 else Missing("a token has no finite likelihood")
