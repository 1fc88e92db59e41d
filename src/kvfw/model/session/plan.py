"""The plan of a session, checked before anything runs."""

from dataclasses import dataclass

from kvfw.core.compose.budget import is_count
from kvfw.core.compress.compressor import Compressor
from kvfw.core.state.lexical import Vocabulary
from kvfw.core.state.observation import Needs
from kvfw.errors import BudgetError, UnsupportedError
from kvfw.model.session.probing import check_probes


@dataclass(frozen=True)
class SessionPlan:
    """What a session captures and when it compresses.

    Args:
        needs: what to capture.
        sinks, recent: numbers of first and last tokens that are always kept.
        compressor: compresses every layer; None only observes.
        prompt_tokens: the prompt ends when this many tokens were seen, padding included; None: after the first forward.
        recompress: compress again at the end of every later turn, to the amount for all tokens seen.
        compress_every: compress again after this many more tokens, to the standing budget of the prompt.
        vocabulary: the tokenizer, for features of the text and for probes.
        probe_ids: token ids of the probe, in place of those the tokenizer would give.

    Raises:
        BudgetError: not a valid number of tokens, or one that leaves no slot to decode with.
        UnsupportedError: lexical features without a tokenizer, or a later compression without the data it needs.
    """

    needs: Needs
    sinks: int
    recent: int
    compressor: Compressor | None = None
    prompt_tokens: int | None = None
    recompress: bool = False
    compress_every: int | None = None
    vocabulary: Vocabulary | None = None
    probe_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.prompt_tokens is not None and not is_count(self.prompt_tokens):
            raise BudgetError(
                f"prompt_tokens is {self.prompt_tokens!r}; it is the prompt's length in tokens, a whole number of 1 or "
                "more"
            )
        if (self.needs.lexical or self.needs.token_types) and self.vocabulary is None:
            raise UnsupportedError("this composition looks at the prompt's text (lexical features); pass tokenizer=")
        check_probes(self.needs, self.vocabulary, self.probe_ids)
        if self.compress_every is not None:
            if not is_count(self.compress_every):
                raise BudgetError(
                    f"compress_every is {self.compress_every!r}; it is a whole number of tokens, 1 or more"
                )
            if self.compressor is not None and self.compressor.amount.kind == "slots":
                self.compressor.amount.standing_slots(1, self.sinks, self.recent)
        if not self.again:
            return
        asked = "compress_every" if self.compress_every is not None else "recompress"
        if self.needs.text:
            raise UnsupportedError(
                f"{asked} compresses slots that are no longer tokens of the prompt, whose text lexical features "
                "(pinned) need; use a composition that looks at attention, keys or positions"
            )
        if self.needs.probes or self.needs.columns or self.needs.references:
            raise UnsupportedError(
                f"{asked} compresses slots that are no longer the prompt's, and a later compression has no probe and "
                "no attention of the whole prompt; use a composition that looks at the last queries, column sums, "
                "moments, keys or positions"
            )
        if self.needs.column_sums and self.compressor is not None and self.compressor.moves_positions:
            raise UnsupportedError(
                f"{asked} with column sums (h2o) needs to know how long a slot has been there, and positions=cache "
                "moves slots to other positions; use positions=original"
            )

    @property
    def again(self) -> bool:
        """Whether there may be compressions after the first."""
        return self.recompress or self.compress_every is not None
