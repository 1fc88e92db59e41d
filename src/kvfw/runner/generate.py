"""One prompt of the user's own, answered over the full cache and over compressed ones."""

from dataclasses import dataclass
from typing import Any

import torch

from kvfw.core.compressor import Compressor, compressor
from kvfw.core.observation import Needs
from kvfw.core.registry import Registry, default_registry
from kvfw.core.spec import parse
from kvfw.model import decode
from kvfw.model.load import choose_device, choose_dtype, load_config, load_model, load_tokenizer, resolve_model
from kvfw.model.prefill import prefill
from kvfw.runner.config import GenerateConfig
from kvfw.runner.limits import check_length, check_positions


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
    bound = [
        compressor(parse(text, found), amount, sinks=config.sinks, recent=config.recent, registry=found)
        for amount in config.amounts()
        for text in config.compose
    ]
    source = resolve_model(config.model, found)
    device = choose_device(config.device)
    choose_dtype(config.dtype, device)
    tokenizer = load_tokenizer(source, trust_remote_code=config.trust_remote_code)
    ids = _ids(tokenizer, config)
    check_length(f"the prompt has {len(ids)} tokens, which", len(ids), config, config.amounts())
    model_config = load_config(source, trust_remote_code=config.trust_remote_code)
    check_positions("the prompt's", len(ids), config.max_new_tokens, config.model, model_config)
    loaded = load_model(source, dtype=config.dtype, device=config.device, trust_remote_code=config.trust_remote_code)
    needs = Needs()
    for one in bound:
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
