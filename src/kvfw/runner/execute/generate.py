"""Answers a user's prompt with the full cache and with compressed ones."""

from dataclasses import dataclass
from typing import Any

import torch

from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.core.state.observation import Needs
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.calibrated import check_calibrated
from kvfw.model.cache.fingerprint import fingerprint
from kvfw.model.load.devices import choose_device, choose_dtype
from kvfw.model.load.load import open_model
from kvfw.model.run import decode
from kvfw.model.run.decode import Written
from kvfw.model.run.prefill import prefill
from kvfw.model.run.sampling import Sampling
from kvfw.runner.plan.config import GenerateConfig
from kvfw.runner.plan.decoding import decoding_plan
from kvfw.runner.plan.limits import check_length, check_parts, check_positions


@dataclass(frozen=True)
class GeneratedText:
    """One answer: title, text, and what it cost."""

    title: str
    text: str
    numbers: str


@torch.inference_mode()
def generate(config: GenerateConfig, registry: Registry | None = None) -> tuple[GeneratedText, ...]:
    """The full cache's answer, then one per composition and amount.

    Raises:
        RequestError: the request is invalid; only the tokenizer was loaded.
    """
    found = registry if registry is not None else default_registry()
    amounts, compositions = config.amounts(), [parse(text, found) for text in config.compose]
    opened = open_model(config.model, trust_remote_code=config.trust_remote_code, registry=found)
    device = choose_device(config.device)
    choose_dtype(config.dtype, device)
    depth = opened.depth
    bound = [
        compressor(composition, amount, sinks=config.sinks, recent=config.recent, depth=depth)
        for amount in amounts
        for composition in compositions
    ]
    tokenizer = opened.tokenizer
    ids = _ids(tokenizer, config)
    # With compression while answering, the answer may fill slots that the prompt does not.
    filled_up = config.compress_every is not None
    filling = tuple(amount for amount in amounts if not (filled_up and amount.kind == "slots"))
    check_length(f"the prompt has {len(ids)} tokens, which", len(ids), config, filling)
    check_positions("the prompt's", len(ids), config.max_new_tokens, config.model, opened.config)
    check_parts(bound, opened, [ids])
    plans = [decoding_plan(one, config, tokenizer) for one in bound]
    loaded = opened.load(dtype=config.dtype, device=config.device)
    check_calibrated((part for each in compositions for part in each.parts), lambda: fingerprint(loaded.model))
    needs = Needs()
    for one in bound if config.compress_every is None else ():
        needs = needs | one.needs
    filled = prefill(
        loaded.model,
        ids,
        needs,
        sinks=config.sinks,
        recent=config.recent,
        vocabulary=loaded.tokenizer,
        chunk=config.prefill_chunk,
    )

    sampling = Sampling(config.temperature, config.top_p, config.seed)

    def sample(title: str, written: Written) -> GeneratedText:
        text = str(tokenizer.decode(list(written.tokens), skip_special_tokens=True)).strip()
        return GeneratedText(title, text, _numbers(len(ids), written, config))

    def over(cache: CompressedCache) -> Written:
        before = cache.held_bytes()
        tokens = decode.continued(loaded.model, cache, filled.logits, config.max_new_tokens, sampling.chooser())
        return Written(tokens, (before, cache.held_bytes()))

    samples = [sample("full", over(filled.full()))]
    for one, plan in zip(bound, plans, strict=True):
        written = (
            over(filled.compressed(one))
            if plan is None
            else decode.continued_planned(
                loaded.model, plan, ids, config.max_new_tokens, sampling.chooser(), chunk=config.prefill_chunk
            )
        )
        samples.append(sample(f"{one.composition} {one.amount}", written))
    return tuple(samples)


def _numbers(prompt_tokens: int, written: Written, config: GenerateConfig) -> str:
    """The cost of an answer; with ``compress_every`` also the cache's size at the end and at its largest."""
    said = f"prompt {prompt_tokens} tokens, KV {written.held[0] / 2**20:.2f} MB"
    if config.compress_every is None:
        return said
    most, last = (held / 2**20 for held in (max(written.held), written.held[-1]))
    return f"{said}; answer {len(written.tokens)} tokens, KV {last:.2f} MB at its end, {most:.2f} MB at most"


def _ids(tokenizer: Any, config: GenerateConfig) -> list[int]:
    """Token ids of the prompt, in the model's chat template if it has one, unless ``raw``."""
    if config.raw or not tokenizer.chat_template:
        return list(tokenizer.encode(config.prompt))
    messages = [{"role": "user", "content": config.prompt}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))
