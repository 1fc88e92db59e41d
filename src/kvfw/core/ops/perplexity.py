"""Perplexity of a text from its tokens' negative log-likelihoods."""

import math
from collections.abc import Sequence

from kvfw.core.contracts.metric import Missing, Value


def perplexity(nll: Sequence[float], why_none: str) -> Value:
    """``exp(mean NLL)``, at least 1.

    Args:
        nll: negative log-likelihoods of the tokens, nats.
        why_none: the reason where there are no tokens.
    """
    if not nll:
        return Missing(why_none)
    mean = math.fsum(nll) / len(nll) if all(map(math.isfinite, nll)) else math.inf
    # Above, exp overflows; such a mean is a broken model's.
    return math.exp(mean) if mean < 700 else Missing("a token has no finite likelihood")
