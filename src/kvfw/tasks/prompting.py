"""Builds prompts of an exact length from separately encoded pieces. No torch, no transformers."""

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from typing import Final

from kvfw.core.contracts.task import Sample, Tokenizer, Turn, facet_text
from kvfw.errors import PromptError

#: Some chat templates print today's date; a fixed date keeps prompts the same every day.
DATE: Final = "1 January 2025"

MARK: Final = "HAYSTACKSTANDSHERE"


def stable_random(*key: object) -> random.Random:
    """A generator seeded only by its key: the same in every process, unlike one seeded by ``hash``."""
    return random.Random(int.from_bytes(hashlib.sha256(repr(key).encode()).digest()))


def encoded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Ids of ``text`` without added special tokens, which the template already has."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Exact text of ``ids``, including special tokens, with spaces untouched."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def framed(tokenizer: Tokenizer, before: str, after: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids around the context of a message: by the model's chat template, or plain if it has none.

    Args:
        tokenizer: the model's own.
        before: the message's text before the context.
        after: its text after the context: the question.

    Returns:
        Ids before the context, special tokens and template included, and ids after it, up to where the model writes.

    Raises:
        PromptError: the chat template does not print the user's message exactly once.
    """
    if not tokenizer.chat_template:
        return (*opening_ids(tokenizer), *encoded(tokenizer, before)), encoded(tokenizer, f"{after}\nAnswer:")
    rendered: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": f"{before}{MARK}{after}"}],
        add_generation_prompt=True,
        tokenize=False,
        date_string=DATE,
    )
    parts = rendered.split(MARK)
    if len(parts) != 2:
        raise PromptError(
            f"the tokenizer's chat template prints the user's message {len(parts) - 1} times; a prompt "
            f"needs it once. Use a tokenizer whose template prints it once, or one without a template."
        )
    return encoded(tokenizer, parts[0]), encoded(tokenizer, parts[1])


def begun_ids(tokenizer: Tokenizer, tail: Sequence[int], begun: str) -> tuple[int, ...]:
    """Ids of the begun answer, after a space unless ``tail`` ends in white space or a special token."""
    if not begun:
        return ()
    fresh_line = tail[-1] in tokenizer.all_special_ids or decoded(tokenizer, tail)[-1:].isspace()
    return encoded(tokenizer, begun if fresh_line else f" {begun}")


def opening_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The special tokens the tokenizer itself puts before a text, such as BOS."""
    special = set(tokenizer.all_special_ids)
    ids = tokenizer.encode("a", add_special_tokens=True)
    count = next((index for index, token in enumerate(ids) if token not in special), 0)
    return tuple(ids[:count])


def grid_sample(
    context: int,
    depth: float,
    seed: int,
    before: tuple[int, ...],
    span: tuple[int, ...],
    after: tuple[int, ...],
    question: tuple[int, ...],
    begun: tuple[int, ...] = (),
    *,
    reference: str,
    max_new_tokens: int = 24,
) -> Sample:
    """The sample of one length, depth and seed, assembled from separately encoded pieces.

    Samples of one length and seed share a text and so form one group; groups of one length form a stratum.

    Args:
        context: length of the whole prompt, tokens.
        depth: place of ``span`` in the text, percent.
        seed: number of the text.
        before, span, after: the context, in order; ``span`` is what a right answer needs.
        question, begun, reference, max_new_tokens: its one turn.

    Raises:
        PromptError: the pieces are not ``context`` tokens together.
    """
    ids = before + span + after
    if (count := len(ids) + len(question) + len(begun)) != context:
        raise PromptError(f"the prompt came out {count} tokens long, not {context}; please report this.")
    return Sample(
        id=f"{context}-{facet_text(depth)}-{seed}",
        group=f"{context}/{seed}",
        facets={"context": context, "depth": float(depth), "seed": seed},
        context_ids=ids,
        turns=(Turn(question, begun, (reference,), max_new_tokens),),
        spans=(range(len(before), len(before) + len(span)),),
    )


def check_grid(contexts: Sequence[int], depths: Sequence[float]) -> None:
    """Raises a PromptError for an empty list, a value given twice, or a depth outside 0 to 100."""
    check_distinct("contexts", contexts)
    check_distinct("depths", depths)
    for depth in depths:
        check_depth(depth)


def check_distinct(what: str, values: Iterable[float]) -> None:
    """Raises a PromptError if there is no value or one is given twice."""
    seen: list[float] = []
    for value in values:
        if value in seen:
            raise PromptError(f"{what}: {value:g} is given twice; the same trial would count twice. Leave one out.")
        seen.append(value)
    if not seen:
        raise PromptError(f"{what}: none given. Give at least one.")


def check_depth(depth_percent: float) -> None:
    """Raises a PromptError if the depth is not a number from 0 to 100."""
    if not (math.isfinite(depth_percent) and 0 <= depth_percent <= 100):
        raise PromptError(
            f"a depth of {depth_percent:g} percent lies outside the text: depths go from 0 (its start) "
            f"to 100 (its end)."
        )
