"""Contexts in a compressed cache, and the log-likelihoods of continuations over it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kvfw.core.compose.budget import Amount
from kvfw.core.compose.composition import Composition
from kvfw.errors import PromptError
from kvfw.harness.sizes import HeldContext
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.compat.versions import passed
from kvfw.model.inspect.layers import anatomy
from kvfw.model.load.load import LoadedModel
from kvfw.model.run.decode import decoding
from kvfw.model.session.attach import attach
from kvfw.model.session.session import new_cache

#: A continuation's log-likelihood in nats, and whether greedy decoding would have written it.
Likelihood = tuple[float, bool]


@dataclass(frozen=True)
class ContextCompressor:
    """Compresses contexts, one at a time.

    A context's last token is held back and fed over the compressed cache, because it predicts the first token of what
    follows: with an answer of one token, the full cache's prediction would be all there is to measure.

    Args:
        loaded: the model.
        composition, amount, sinks, recent: as for :func:`kvfw.attach`.
        chunk: tokens per forward of a context; None: all at once.
    """

    loaded: LoadedModel
    composition: Composition
    amount: Amount
    sinks: int
    recent: int
    chunk: int | None = None

    def check(self, task: str, longest: int) -> None:
        """Refuses a task in which nothing would be compressed, unless the amount keeps everything.

        Raises:
            PromptError: not even the longest context, of ``longest`` tokens, would become smaller.
            BudgetError: the amount leaves no slot for the middle of any context.
        """
        middle = self._middle(longest)
        if (self.amount.kind != "slots" and self.amount.value == 1) or (
            self._has_middle(longest) and self.amount.middle_slots(middle, self.sinks, self.recent) < middle
        ):
            return
        always = self.sinks + self.recent + self.amount.least_middle()
        needed = 1 + max(always, int(self.amount.value) + 1 if self.amount.kind == "slots" else 0)
        raise PromptError(
            f"nothing in task {task} would be compressed: its longest context has {longest} tokens, and at "
            f"{self.amount} with {self.sinks} sinks and {self.recent} recent tokens, which are always kept, it takes "
            f"{needed}. Say sinks=, recent= or a smaller amount in model_args, or give more examples (--num_fewshot)"
        )

    def _middle(self, tokens: int) -> int:
        return tokens - 1 - self.sinks - self.recent

    def _has_middle(self, tokens: int) -> bool:
        return self._middle(tokens) >= self.amount.least_middle()

    @contextmanager
    def holding(self, ids: Sequence[int]) -> Iterator[tuple[CompressedCache, HeldContext | None]]:
        """A cache that has seen all tokens of a context but the last, and what it holds; None where that is nothing.

        A context with too small a middle for one slot is not compressed. The model attends to the cache, and its
        copies, inside the block only. Errors as for :func:`kvfw.attach`.
        """
        model, before = self.loaded.model, torch.tensor([ids[:-1]], device=self.loaded.model.device)
        if not self._has_middle(len(ids)):
            cache = new_cache(model)
            with decoding(model, cache):
                yield cache, self._fed(cache, before)
            return
        amount = {self.amount.kind: self.amount.value}
        with attach(
            model,
            self.composition,
            **amount,  # type: ignore[arg-type]  # a whole number of slots is one as a fraction
            sinks=self.sinks,
            recent=self.recent,
            prompt_tokens=len(ids) - 1,
            tokenizer=self.loaded.tokenizer,
        ) as cache:
            yield cache, self._fed(cache, before)

    def _fed(self, cache: CompressedCache, ids: Tensor) -> HeldContext | None:
        if not ids.shape[1]:
            return None
        for part in torch.split(ids, self.chunk or ids.shape[1], dim=1):
            self.loaded.model(input_ids=part, **passed(self.loaded.model, cache), use_cache=True, logits_to_keep=1)
        layers = [part.index for part in anatomy(self.loaded.model).compressible]
        return HeldContext.of(cache.report(), self._bytes_per_token, layers)

    @cached_property
    def _bytes_per_token(self) -> int:
        model = self.loaded.model
        numbers = sum(part.kv_heads * (part.key_dim + part.value_dim) for part in anatomy(model).compressible)
        return int(numbers * model.dtype.itemsize)

    @torch.inference_mode()
    def likelihoods(
        self, context: Sequence[int], continuations: Sequence[Sequence[int]], held: Callable[[HeldContext], None]
    ) -> list[Likelihood]:
        """Log-likelihoods of continuations of one token or more, after one prefill and one compression.

        Each is scored over a copy of the context's cache; those that differ in their last token alone share a forward.
        ``held`` is told what the context's cache held.
        """
        with self.holding(context) as (cache, size):
            if size is not None:
                held(size)
            scores = {
                fed: self._log_probabilities((context[-1], *fed), cache.copy())
                for fed in dict.fromkeys(tuple(tokens[:-1]) for tokens in continuations)
            }
        return [_likelihood(scores[tuple(tokens[:-1])], tokens) for tokens in continuations]

    def _log_probabilities(self, tokens: Sequence[int], cache: CompressedCache) -> Tensor:
        """``[n, V]`` float32: of what follows each of ``n`` tokens fed at once."""
        ids = torch.tensor([list(tokens)], device=self.loaded.model.device)
        logits: Tensor = self.loaded.model(input_ids=ids, **passed(self.loaded.model, cache), use_cache=True).logits
        return logits[0].float().log_softmax(-1)


def _likelihood(scores: Tensor, tokens: Sequence[int]) -> Likelihood:
    wanted = torch.tensor(list(tokens), device=scores.device)
    found = scores.gather(1, wanted[:, None]).sum()
    return float(found), bool((scores.argmax(-1) == wanted).all())
