"""Times a whole evaluation of many compositions on one prompt against prefilling it once per composition."""

from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from kvfw.bench.clock import Tell, ratios, rounds, seconds_of
from kvfw.bench.limits import SIXTEEN
from kvfw.core.registry.registry import default_registry
from kvfw.core.state.observation import Needs
from kvfw.model.load.load import LoadedModel
from kvfw.model.load.sentence import SentenceEncoder
from kvfw.model.run.prefill import prefill
from kvfw.runner.execute.answers import Tools
from kvfw.runner.execute.trial import fill, run_prompt
from kvfw.runner.plan.config import EvalConfig
from kvfw.runner.plan.prepare import prepare

NEW_TOKENS = 16


@dataclass(frozen=True)
class Whole:
    """Time of an evaluation: prefill, compression, decoding and all metrics of all rows, without writing files.

    Attributes:
        compositions: their number.
        tokens: length of the prompt.
        new_tokens: maximum length of a response.
        evaluation_s, prefill_s: medians over repeats; the prefill observes nothing.
        fraction: median of evaluation / (compositions x prefill).
    """

    compositions: int
    tokens: int
    new_tokens: int
    evaluation_s: float
    prefill_s: float
    fraction: float


def whole(loaded: LoadedModel, model: str, tokens: int, repeats: int, tell: Tell) -> Whole:
    """Evaluates the sixteen compositions on one prompt of the default task.

    Decode speed is not measured: it takes a separate pass at batch 1, in the first trial of each length only.
    """
    config = EvalConfig.of(
        {
            "compose": SIXTEEN,
            "contexts": (tokens,),
            "depths": (50.0,),
            "model": model,
            "dtype": str(loaded.model.dtype).removeprefix("torch."),
            "device": str(loaded.model.device),
            "max_new_tokens": NEW_TOKENS,
        }
    )
    plan = prepare(config, default_registry())
    (question,) = plan.prompts[0].questions
    planned = replace(plan.prompts[0], questions=(replace(question, timed=False),))
    tools = Tools(loaded, SentenceEncoder())
    tools.encoder.similarity("load", "it")
    evaluated, prefilled, device = [], [], loaded.model.device
    for say in rounds(tell, repeats, warm_up=True):
        say("prefill")
        alone = partial(
            prefill, loaded.model, planned.compressed_ids, Needs(), sinks=config.sinks, recent=config.recent
        )
        prefilled.append(seconds_of(alone, device) * len(SIXTEEN))
        say("evaluation")
        evaluation = seconds_of(lambda: list(run_prompt(plan, planned, fill(plan, planned, tools), (), tools)), device)
        evaluated.append(evaluation)
    del evaluated[0], prefilled[0]  # the warm-up
    return Whole(
        compositions=len(SIXTEEN),
        tokens=tokens,
        new_tokens=NEW_TOKENS,
        evaluation_s=median(evaluated),
        prefill_s=median(prefilled) / len(SIXTEEN),
        fraction=median(ratios(evaluated, prefilled)),
    )
