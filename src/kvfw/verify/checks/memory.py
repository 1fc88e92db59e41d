"""Checks that nothing of size N x N is made: the longest prompts need compression most."""

from dataclasses import replace

import torch

from kvfw.core.state.observation import ALL
from kvfw.verify.findings.property import CHANGING, holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Passed, Verdicts
from kvfw.verify.instruments.meter import Meter
from kvfw.verify.instruments.observed import RECENT, SINKS, observe, random_row

#: Length of the shorter of two prompts; the longer has twice as many.
TOKENS = 512
#: The number of slots is the same for both lengths, so that only the prompt grows.
SLOTS = 24
#: A tensor that grows with the length doubles, one that grows with its square becomes four times as large.
MOST_GROWTH = 3.0
#: A part sees at most this many queries, so that its window does not set the prompts' length.
MOST_QUERIES = 1024


def largest_tensor(subject: Subject, tokens: int) -> int:
    """Bytes of the largest tensor made while compressing a prompt of this length."""
    bound = subject.bound()
    needs = bound.needs
    shown = MOST_QUERIES if needs.queries == ALL else min(needs.queries, MOST_QUERIES)
    obs = observe([random_row(tokens, 3)], replace(needs, queries=shown))
    with Meter() as meter:
        bound.compress(obs, torch.full((1, 2), SLOTS))
    largest: int = meter.largest_bytes
    return largest


@holds("no-square", "no tensor grows with the square of the prompt's length", CHANGING)
def no_square(subject: Subject) -> Verdicts:
    """Compares the largest tensors for a prompt and for one twice as long."""
    asked = subject.bound().needs.queries
    tokens = max(TOKENS, (MOST_QUERIES if asked == ALL else min(asked, MOST_QUERIES)) + SINKS + RECENT)
    short, long = largest_tensor(subject, tokens), largest_tensor(subject, 2 * tokens)
    growth = long / max(short, 1)
    figures = f"the largest tensor is {short / 1024:.0f} KiB at {tokens} tokens, {long / 1024:.0f} KiB at {2 * tokens}"
    if asked == ALL or asked > MOST_QUERIES:
        figures += f"; shown {MOST_QUERIES} of the {asked} queries it asks for"
    if growth > MOST_GROWTH:
        yield Failed("no tensor that grows with the square of the prompt's length", f"{figures}: {growth:.1f} x")
    yield Passed(figures)
