"""How the next token is chosen from logits: the best one, or one drawn at random."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

#: Chooses a token from logits ``[V]``.
Choose = Callable[[Tensor], int]


def best(logits: Float[Tensor, " V"]) -> int:
    """The token with the largest logit."""
    return int(logits.argmax())


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Args:
        temperature: logits are divided by it; 0 always takes the best token.
        top_p: only the most likely tokens that together reach this probability may be drawn.
        seed: where the random numbers start.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def chooser(self) -> Choose:
        """Chooses one response's tokens, one after the other.

        Step ``t`` of every response of a seed draws with the same noise, whatever was drawn before: responses over
        different caches part only where the caches' probabilities do.
        """
        if self.temperature == 0:
            return best
        # On the CPU whatever the model runs on, so that a seed means the same everywhere.
        noise = torch.Generator().manual_seed(self.seed)

        def drawn(logits: Tensor) -> int:
            # The largest is 0 before it is divided, which even the smallest temperature leaves finite.
            cold = logits.double().cpu()
            likely = nucleus((cold - cold.max()) / self.temperature, self.top_p)
            # The first of waiting times with rates p is i with probability p_i.
            return int((likely / torch.empty_like(likely).exponential_(generator=noise)).argmax())

        return drawn


def nucleus(logits: Float[Tensor, " V"], top_p: float) -> Float[Tensor, " V"]:
    """Probabilities of the fewest tokens that together reach ``top_p``, not normalised; 0 for the others.

    Holtzman et al. 2020, The Curious Case of Neural Text Degeneration, arXiv 1904.09751.
    """
    likely = logits.softmax(-1)
    if top_p == 1:
        return likely
    ranked, order = likely.sort(descending=True, stable=True)
    ahead = ranked.cumsum(-1) - ranked
    return likely.index_fill(0, order[ahead >= top_p], 0.0)
