"""Choosing the next token from logits: greedy or sampled."""

import math
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
    """Settings for sampling tokens.

    Args:
        temperature: logits are divided by it, 0 or more; 0 always takes the best token.
        top_p: only the most likely tokens that together reach this probability may be drawn; above 0, at most 1.
        seed: of the random numbers, 0 or more.

    Raises:
        ValueError: a number outside its range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.temperature < math.inf and 0 < self.top_p <= 1 and self.seed >= 0):
            raise ValueError(
                f"{self}: temperature must be finite and 0 or more, top_p above 0 and at most 1, seed 0 or more"
            )

    def chooser(self) -> Choose:
        """A function that chooses the tokens of one response.

        Step ``t`` of every response of a seed draws with the same noise, whatever was drawn before, so responses over
        different caches differ only where the caches' probabilities do.
        """
        if self.temperature == 0:
            return best
        # On the CPU, so that a seed means the same whatever device the model runs on.
        noise = torch.Generator().manual_seed(self.seed)

        def drawn(logits: Tensor) -> int:
            # With the largest logit at 0 even the smallest temperature gives finite quotients.
            cold = logits.cpu().double()
            likely = nucleus((cold - cold.max()) / self.temperature, self.top_p)
            # Of exponential waiting times with rates p the i-th is the first with probability p_i.
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
    # Probability of all tokens ahead of each; a difference of sums would round once more.
    ahead = torch.nn.functional.pad(ranked.cumsum(-1)[:-1], (1, 0))
    return likely.index_fill(0, order[ahead >= top_p], 0.0)
