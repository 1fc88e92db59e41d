"""The settings that lm-eval hands to kvfw, most of them from ``--model_args``."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from kvfw.errors import OptionError
from kvfw.runner.plan.config import CompressionConfig

WAY_OUT = (
    "quote model_args on lm-eval's command line, write them as JSON there ('{\"compose\": ...}'), or pass "
    "simple_evaluate a dict; a string in a --config file or in simple_evaluate is cut at every comma"
)


class HarnessConfig(CompressionConfig):
    """The settings of one lm-eval run: one composition at one amount.

    Attributes:
        max_length: most tokens of context and continuation; None: the model's positions. lm-eval cuts longer contexts
            from the left, with a warning.
        add_bos_token: put the begin token before every text; None: as the tokenizer does by itself.
        prefix_token_id: the token that stands for an empty context; None: the begin token, or else the end token.
        enable_thinking: passed to the chat template; None: not passed.
        think_end_token: only what a response says after this token counts; text or id.
        chat_template_args: further arguments of the chat template.
        batch_size: contexts at once, from lm-eval's ``--batch_size``; only 1.

    Raises:
        OptionError: an unknown setting, a value of the wrong type or range, several compositions or amounts, or a
            composition that lm-eval cut at a comma.
    """

    max_length: int | None = Field(default=None, ge=2)
    add_bos_token: bool | None = None
    prefix_token_id: int | None = Field(default=None, ge=0)
    enable_thinking: bool | None = None
    think_end_token: str | int | None = None
    chat_template_args: dict[str, Any] | None = None
    batch_size: int | str = 1

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The settings under lm-eval's names: the model is ``pretrained``."""
        compose = str(given.get("compose", ""))
        if any(compose.count(opening) != compose.count(closing) for opening, closing in ("()", "[]")):
            raise OptionError(f"compose arrived as {compose!r}, with a bracket that is not closed: {WAY_OUT}")
        renamed = {"model" if name == "pretrained" else name: value for name, value in given.items()}
        return cls(**{name: value for name, value in renamed.items() if name != "max_batch_size"})

    @model_validator(mode="after")
    def _one_row(self) -> Self:
        amounts = self.amounts()
        if len(self.compose) != 1 or len(amounts) != 1:
            raise OptionError(
                f"compose is {' and '.join(self.compose) or 'empty'}, the amount {' and '.join(map(str, amounts))}; "
                "one lm-eval run has one composition and one amount. Run lm-eval once for each"
            )
        if str(self.batch_size) != "1":
            raise OptionError(
                f"batch_size is {self.batch_size!r}; kvfw compresses one context at a time and answers all its "
                "continuations from it. Leave out --batch_size, or say 1"
            )
        if self.compress_every is not None:
            raise OptionError(
                f"compress_every is {self.compress_every}; in lm-eval only contexts are compressed. Leave it out, or "
                "use kvfw eval --compress-every"
            )
        return self
