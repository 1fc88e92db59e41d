"""One prompt of the user's own, answered over the full cache and over compressed ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvfw.core.compressor import Compressor, compressor
from kvfw.core.observation import Needs
from kvfw.core.registry import Registry, default_registry
from kvfw.core.spec import parse
from kvfw.errors import OptionError, PromptError
from kvfw.model import decode
from kvfw.model.load import load_config, load_model, load_tokenizer, resolve_model
from kvfw.model.prefill import prefill
from kvfw.runner.config import DEFAULT_COMPOSE, EvalConfig


class GenerateConfig(BaseModel):
    """What to answer. Fields as in :class:`kvfw.runner.config.EvalConfig`; ``raw`` leaves the chat template out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    compose: tuple[str, ...] = (DEFAULT_COMPOSE,)
    ratio: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    sinks: int = 4
    recent: int = 84
    max_new_tokens: int = Field(64, ge=1)
    raw: bool = False
    model: str = "smollm2-135m"
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """A configuration from what was given.

        Raises:
            OptionError: a value of the wrong type or range.
        """
        try:
            return cls(**given)
        except ValidationError as error:
            problems = (f"{'.'.join(map(str, e['loc']))} is {e['input']!r}: {e['msg']}" for e in error.errors())
            raise OptionError("; ".join(problems)) from None


@dataclass(frozen=True)
class Sample:
    """One answer: its title, its text, and what it cost."""

    title: str
    text: str
    numbers: str


@torch.inference_mode()
def generate(config: GenerateConfig, registry: Registry | None = None) -> tuple[Sample, ...]:
    """The full cache's answer, then one per composition and amount.

    Raises:
        RequestError: something about the request is wrong; nothing was loaded but the tokenizer.
    """
    found = registry if registry is not None else default_registry()
    amounts = EvalConfig(
        ratio=config.ratio, slots=config.slots, keep=config.keep, sinks=config.sinks, recent=config.recent
    ).amounts()
    bound = [
        compressor(parse(text, found), amount, sinks=config.sinks, recent=config.recent, registry=found)
        for amount in amounts
        for text in config.compose
    ]
    source = resolve_model(config.model)
    tokenizer = load_tokenizer(source, trust_remote_code=config.trust_remote_code)
    ids = _ids(tokenizer, config)
    model_config = load_config(source, trust_remote_code=config.trust_remote_code).get_text_config(decoder=True)
    limit = getattr(model_config, "max_position_embeddings", None)
    if limit is not None and len(ids) + config.max_new_tokens > limit:
        raise PromptError(
            f"the prompt's {len(ids)} tokens and {config.max_new_tokens} new ones exceed the {limit} positions of "
            f"{config.model}; shorten the prompt"
        )
    always = config.sinks + config.recent
    for one in bound:
        needed = always + one.amount.least_middle()
        if len(ids) < needed:
            raise PromptError(
                f"the prompt has {len(ids)} tokens; {config.sinks} sinks and {config.recent} recent tokens are always "
                f"kept, so compressing at {one.amount} needs at least {needed}. Give a longer prompt or a smaller "
                "--recent"
            )
        one.amount.middle_slots(len(ids) - always, config.sinks, config.recent)
    loaded = load_model(source, dtype=config.dtype, device=config.device, trust_remote_code=config.trust_remote_code)
    needs = Needs()
    for one in bound:
        needs = needs | one.needs
    filled = prefill(loaded.model, ids, needs, sinks=config.sinks, recent=config.recent, vocabulary=loaded.tokenizer)
    samples = []
    rows: list[Compressor | None] = [None, *bound]
    for row in rows:
        cache = filled.full() if row is None else filled.compressed(row)
        report = cache.report()
        tokens = decode.greedy(loaded.model, cache, filled.logits, config.max_new_tokens)
        title = "full" if row is None else f"{row.composition} {row.amount}"
        text = str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()
        samples.append(Sample(title, text, f"prompt {len(ids)} tokens, KV {report.kv_bytes / 2**20:.2f} MB"))
    return tuple(samples)


def _ids(tokenizer: Any, config: GenerateConfig) -> list[int]:
    """Token ids of the prompt, in the model's chat template unless ``raw`` or where it has none."""
    if config.raw or not tokenizer.chat_template:
        return list(tokenizer.encode(config.prompt))
    messages = [{"role": "user", "content": config.prompt}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))
