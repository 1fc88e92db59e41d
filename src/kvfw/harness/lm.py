"""The model ``kvfw`` of lm-eval."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from tqdm import tqdm

import kvfw
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.errors import OptionError, PromptError, UnsupportedError
from kvfw.harness.config import HarnessConfig
from kvfw.harness.contexts import ContextCompressor, Likelihood
from kvfw.harness.sizes import HeldContext, realised, realised_text
from kvfw.model.compat.versions import passed
from kvfw.model.load.load import open_model

# A child of lm-eval's logger, whose level and format are the user's choice.
log = logging.getLogger("lm_eval.kvfw")

#: One request for a log-likelihood: texts, tokens of the context, tokens of the continuation.
Asked = tuple[tuple[str, str] | None, list[int], list[int]]


class CompressedLM(HFLM):  # type: ignore[misc]  # lm-eval is not typed
    """A causal language model whose contexts are compressed before anything is scored or written.

    Tokens, chat templates, stop sequences and limits are those of lm-eval's own ``hf``, which it extends.

    Args:
        given: the settings of :class:`kvfw.harness.config.HarnessConfig`, with ``pretrained`` for the model.

    Raises:
        RequestError: before the model is loaded.
    """

    def __init__(self, **given: Any) -> None:
        config = HarnessConfig.of(given)
        composition, (amount,) = parse(config.compose[0]), config.amounts()
        opened = open_model(config.model, trust_remote_code=config.trust_remote_code)
        compressor(composition, amount, sinks=config.sinks, recent=config.recent, depth=opened.depth)
        loaded = opened.load(dtype=config.dtype, device=_device(config.device))
        with _no_advice():
            super().__init__(
                pretrained=loaded.model,
                tokenizer=loaded.tokenizer,
                **config.model_dump(
                    include={"max_length", "add_bos_token", "prefix_token_id", "enable_thinking", "think_end_token"}
                ),
                chat_template_args=config.chat_template_args,
            )
        self._compressor = ContextCompressor(
            loaded, composition, amount, config.sinks, config.recent, config.prefill_chunk
        )
        self._held: dict[str, list[HeldContext]] = {}
        self._task = ""

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Likelihood]:
        """Log-likelihoods of continuations over their compressed contexts.

        Raises:
            PromptError: all contexts of a task are too short to compress.
        """
        return self._task_by_task(super().loglikelihood, requests, disable_tqdm)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Responses over compressed contexts, until a stop sequence or the limit.

        Raises:
            OptionError: more than one response or beam is asked for.
            PromptError: all contexts of a task are too short to compress.
        """
        for request in requests:
            several = [name for name in ("num_beams", "num_return_sequences") if request.args[1].get(name, 1) != 1]
            if several:
                raise OptionError(
                    f"task {request.task_name} sets {' and '.join(several)} in generation_kwargs; kvfw writes one "
                    f"response at a time. Say {', '.join(f'{name}=1' for name in several)} in --gen_kwargs"
                )
        return self._task_by_task(super().generate_until, requests, disable_tqdm)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Always raises UnsupportedError."""
        raise UnsupportedError(
            f"task {requests[0].task_name} asks for the likelihood of whole texts (loglikelihood_rolling), which have "
            "no context to compress. Leave it out, or use kvfw eval --task longtext, which compresses the text before"
        )

    def _task_by_task(self, answer: Callable[..., list[Any]], requests: Sequence[Any], disable_tqdm: bool) -> list[Any]:
        """Answers to requests in their order, each task's contexts counted apart; checked before any is answered."""
        tasks = dict[str, list[int]]()
        for index, request in enumerate(requests):
            tasks.setdefault(request.task_name, []).append(index)
        for task, places in tasks.items():
            contexts = {requests[index].args[0] for index in places}
            self._compressor.check(task, max(len(self.tok_encode(context)) for context in contexts))
        found = dict[int, Any]()
        for task, places in tasks.items():
            self._task = task
            asked = [requests[index] for index in places]
            found.update(zip(places, answer(asked, disable_tqdm=disable_tqdm), strict=True))
            log.info("%s", realised_text(task, self._held.get(task, [])))
        return [found[index] for index in range(len(requests))]

    def _note(self, held: HeldContext) -> None:
        self._held.setdefault(self._task, []).append(held)

    def _loglikelihood_tokens(self, requests: Sequence[Asked], disable_tqdm: bool = False) -> list[Likelihood]:
        """Groups requests by context, so that one prefill and one compression serve all its continuations."""
        groups = dict[tuple[int, ...], list[int]]()
        for index, (_, context, continuation) in enumerate(requests):
            groups.setdefault(self._fitted(context, continuation), []).append(index)
        found = dict[int, Likelihood]()
        for context, places in tqdm(groups.items(), desc=f"Compressing contexts of {self._task}", disable=disable_tqdm):
            answers = self._compressor.likelihoods(context, [requests[index][2] for index in places], self._note)
            for index, answer in zip(places, answers, strict=True):
                found[index] = answer
                self.cache_hook.add_partial("loglikelihood", requests[index][0], answer)
        return [found[index] for index in range(len(requests))]

    def _fitted(self, context: list[int], continuation: list[int]) -> tuple[int, ...]:
        """The end of a context that fits before a continuation, as in ``hf``: the last token scored is not fed.

        Raises:
            PromptError: the continuation has no tokens, or more than fit by itself.
        """
        room = self.max_length + 1 - len(continuation)
        if not continuation or room < 1:
            raise PromptError(
                f"a continuation in task {self._task} has {len(continuation)} tokens; it takes at least one, and at "
                f"most the model's {self.max_length} (max_length)"
            )
        if len(context) > room:
            log.warning("task %s: a context of %d tokens is cut to its last %d", self._task, len(context), room)
        return tuple(context[-room:])

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **settings: Any) -> Tensor:
        """A response to one context ``[1, n]``, which stands before it: ``[1, n + response]``."""
        with torch.inference_mode(), self._compressor.holding(context[0].tolist()) as (cache, held):
            if held is not None:
                self._note(held)
            settings |= passed(self.model, cache)
            answer: Tensor = super()._model_generate(context, max_length, stop, **settings)
        return answer

    def get_model_info(self) -> dict[str, Any]:
        """What stands in the results under ``config``: the model, the composition, the realised size by task."""
        done = self._compressor
        return {
            "model_num_parameters": self.model.num_parameters(),
            "model_dtype": str(self.model.dtype).removeprefix("torch."),
            "kvfw": {
                "version": kvfw.__version__,
                "device": str(self.model.device),
                "compose": str(done.composition),
                "amount": str(done.amount),
                "sinks": done.sinks,
                "recent": done.recent,
                "realised": {task: realised(held) for task, held in self._held.items()},
            },
        }


def _device(asked: str) -> str:
    """The device asked for. lm-eval's command line asks for ``cuda:0`` by itself: without CUDA, the first available."""
    if asked != "cuda:0" or torch.cuda.is_available():
        return asked
    log.info("there is no cuda:0 here, lm-eval's default; the first available device is used")
    return "auto"


@contextmanager
def _no_advice() -> Iterator[None]:
    """Keeps lm-eval from saying that settings are ignored with a loaded model: those that would be are refused."""
    logger = logging.getLogger(HFLM.__module__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
