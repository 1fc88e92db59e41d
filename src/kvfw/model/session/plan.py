"""What a session is asked to do, and what it refuses before anything runs."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvfw.core.compress.allocation import EvenSplit
from kvfw.core.compress.compressor import Compressor
from kvfw.core.contracts.parts import Allocator
from kvfw.core.state.lexical import Vocabulary
from kvfw.core.state.observation import Needs
from kvfw.core.state.state import KVState
from kvfw.errors import BudgetError, PromptError, UnsupportedError


@dataclass(frozen=True)
class SessionPlan:
    """What a session does at the end of the prompt.

    Args:
        needs: what to capture on the way.
        sinks, recent: tokens that are always kept.
        compressor: compresses every layer; None only observes.
        prompt_tokens: the prompt ends when this many tokens were seen, padding included; None: after the first forward.
        recompress: compress again at the end of every later turn, down to what its amount means for all tokens seen.
        compress_every: compress again whenever so many tokens were added, down to the standing budget of the prompt.
        allocator: divides the budget over layers and heads.
        vocabulary: the tokenizer, for lexical features.

    Raises:
        BudgetError: a number of tokens is not one, or leaves no slot to decode with.
        UnsupportedError: lexical features are needed but there is no tokenizer; or a later compression would need
            what only a first one can know.
    """

    needs: Needs
    sinks: int
    recent: int
    compressor: Compressor | None = None
    prompt_tokens: int | None = None
    recompress: bool = False
    compress_every: int | None = None
    allocator: Allocator = field(default_factory=EvenSplit)
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        if self.prompt_tokens is not None and not _is_count(self.prompt_tokens):
            raise BudgetError(
                f"prompt_tokens is {self.prompt_tokens!r}; it is the prompt's length in tokens, a whole number of 1 or "
                "more"
            )
        if self.needs.lexical and self.vocabulary is None:
            raise UnsupportedError("this composition looks at the prompt's text (lexical features); pass tokenizer=")
        if self.compress_every is not None:
            self._check_every(self.compress_every)
        if not self.again:
            return
        asked = "compress_every" if self.compress_every is not None else "recompress"
        if self.needs.lexical:
            raise UnsupportedError(
                f"{asked} compresses slots that are no longer tokens of the prompt, whose text lexical features "
                "(pinned) need; use a composition that looks at attention, keys or positions"
            )
        if self.needs.column_sums and self.compressor is not None and self.compressor.moves_positions:
            raise UnsupportedError(
                f"{asked} with column sums (h2o) needs to know how long a slot has been there, and positions=cache "
                "moves slots to other positions; use positions=original"
            )

    def _check_every(self, every: object) -> None:
        if not _is_count(every):
            raise BudgetError(f"compress_every is {every!r}; it is a whole number of tokens, 1 or more")
        if self.compressor is not None and self.compressor.amount.kind == "slots":
            self.compressor.amount.standing_slots(1, self.sinks, self.recent)

    @property
    def again(self) -> bool:
        """Whether there may be compressions after the first."""
        return self.recompress or self.compress_every is not None


def _is_count(value: object) -> bool:
    """Whether it is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_call(new: int, seen: int, mask: Any) -> None:
    """Refuses a forward that would mean something else than it looks like.

    Args:
        new: tokens it feeds.
        seen: tokens already in the cache.
        mask: the attention mask it was given.

    Raises:
        PromptError: it feeds nothing.
        UnsupportedError: its mask speaks of another number of tokens.
    """
    if new == 0 and seen == 0:
        raise PromptError("the prompt has no tokens; give the model at least one")
    over_all = f"an attention mask over all {seen + new if new else f'{seen} tokens so far and the new ones'}"
    if new == 0:
        raise PromptError(
            f"no new token reached the model, after {seen} in the cache. For a further turn pass generate all ids so "
            f"far with the new ones, or the new ones with {over_all}; a new prompt needs a block of its own"
        )
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] != seen + new:
        raise UnsupportedError(
            f"the attention mask speaks of {mask.shape[1]} tokens; the cache has seen {seen} and {new} are new, so "
            f"pass {over_all}"
        )


def text_positions(position_ids: Tensor, count: int) -> Tensor:
    """Positions ``[B or 1, count]`` float32 of the last tokens; ids of several axes agree on all of them for text."""
    ids = position_ids[0] if position_ids.ndim == 3 else position_ids
    return ids[:, -count:].to(torch.float32)


def check_goes_on(state: KVState, given: Tensor, position_ids: Any, mask: Any) -> None:
    """A later forward must go on where the cache ends: else the cache is of another text, or of other rows.

    ``generate`` counts on a cache to hold the beginning of the ids it is given, and slices them by its length.

    Args:
        state: the slots of a layer, from the tokens before.
        given: ``[B, n]`` or ``[B, n, E]``, what is fed: ids or embeddings.
        position_ids: ``[B or 1, n]`` or ``[axes, B or 1, n]``, where the caller wants them; None: where the cache ends.
        mask: the attention mask it was given.

    Raises:
        PromptError: another number of rows than are stored; or a row's first new token stands no later than its last.
    """
    rows, (fed, count) = len(state.mass), given.shape[:2]
    if fed != rows:
        raise PromptError(
            f"{fed} rows of tokens were fed to a cache of {rows}. For several answers to what it holds, beams too, "
            "repeat its rows first: cache.batch_repeat_interleave(n); other prompts need a block of their own"
        )
    if not isinstance(position_ids, Tensor):
        return
    positions = text_positions(position_ids, count).expand(rows, count)
    if isinstance(mask, Tensor) and mask.ndim == 2:
        positions = positions.masked_fill(mask[:, -count:] == 0, torch.inf)
    first, last = positions.amin(1), state.positions.amax((1, 2))
    if bool((first > last).all()):
        return
    row = int((first <= last).nonzero()[0])
    raise PromptError(
        f"the cache holds tokens up to position {last[row]:.0f}, and a new one is to stand at position "
        f"{first[row]:.0f}: the ids do not go on where it ends. For a further turn pass generate all ids so far, the "
        "answer's too, with the new ones; a new prompt needs a block of its own"
    )
