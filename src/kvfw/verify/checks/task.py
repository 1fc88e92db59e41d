"""What holds of a task: prompts of the right length, the same everywhere, with an answer that can be found."""

from dataclasses import replace

from kvfw.core.contracts.task import Prompt, Trial
from kvfw.core.parts.spec import Kind
from kvfw.errors import KvfwError, PromptError, RunError
from kvfw.verify.findings.property import Property
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import PASSED, Failed, NotApplicable, Verdict
from kvfw.verify.instruments.other_process import digest, digests_elsewhere
from kvfw.verify.instruments.tokenizer import SuiteTokenizer

TASKS = frozenset({Kind.TASK})
TOKENIZER = SuiteTokenizer()
#: Tried in turn: the first with room for the task's template is used.
CONTEXTS = (512, 1024, 2048, 4096)
DEPTHS = (0.0, 37.5, 100.0)


def _context(subject: Subject) -> int:
    for context in CONTEXTS[:-1]:
        try:
            subject.task.prompt(TOKENIZER, Trial(context, 50.0, 0))
        except PromptError:
            continue
        return context
    return CONTEXTS[-1]


def _trials(subject: Subject) -> list[Trial]:
    context = _context(subject)
    return [Trial(tokens, depth, seed) for tokens in (context, context + 77) for depth in DEPTHS for seed in (0, 1)]


def _prompts(subject: Subject) -> list[tuple[Trial, Prompt]]:
    return [(trial, subject.task.prompt(TOKENIZER, trial)) for trial in _trials(subject)]


def length(subject: Subject) -> Verdict:
    """Tokens of every prompt, and that its text is its tokens'."""
    for trial, prompt in _prompts(subject):
        if len(prompt.input_ids) != trial.context_tokens:
            return Failed(f"{trial.context_tokens} tokens for {trial}", f"{len(prompt.input_ids)}")
        if prompt.text != TOKENIZER.decode(list(prompt.input_ids)):
            return Failed("`text` is `input_ids` decoded, special tokens included", f"another text for {trial}")
    return PASSED


def repeatable(subject: Subject) -> Verdict:
    """Prompts of a second call, of another instance, and of another process."""
    trials = _trials(subject)[:4]
    first = [digest(subject.task.prompt(TOKENIZER, trial)) for trial in trials]
    options = subject.options
    twin = type(options)(**{key: getattr(options, key) for key in type(options).model_fields})
    other = replace(subject, built=replace(subject.built, value=twin))
    for who, task in (("in a second call", subject.task), ("by another instance", other.task)):
        if [digest(task.prompt(SuiteTokenizer(), trial)) for trial in reversed(trials)] != first[::-1]:
            return Failed(f"the same prompt {who}", "another one")
    try:
        elsewhere = digests_elsewhere(subject.task, trials, hash_seed=12345)
    except RunError as error:
        return Failed("the same prompt in another process", str(error))
    return PASSED if elsewhere == first else Failed("the same prompt in another process", "another one")


def spans(subject: Subject) -> Verdict:
    """Needle and context as places in the prompt."""
    for trial, prompt in _prompts(subject):
        if not 0 < prompt.context_end <= len(prompt.input_ids):
            return Failed(f"0 < context_end <= {len(prompt.input_ids)}", f"{prompt.context_end} for {trial}")
        inside = prompt.needle.step == 1 and prompt.needle.start >= 0 and prompt.needle.stop <= prompt.context_end
        if len(prompt.needle) and not inside:
            return Failed(f"the needle within the first {prompt.context_end} tokens", f"{prompt.needle} for {trial}")
    return PASSED


def answer_once(subject: Subject) -> Verdict:
    """Occurrences of the answer, in the whole prompt and in the needle."""
    prompts = _prompts(subject)
    if not any(len(prompt.needle) for _, prompt in prompts):
        return NotApplicable("the prompts have no needle")
    for trial, prompt in prompts:
        seen = prompt.text.count(prompt.answer) if prompt.answer else 0
        span = TOKENIZER.decode(list(prompt.input_ids[prompt.needle.start : prompt.needle.stop]))
        if seen != 1 or prompt.answer not in span:
            return Failed(
                "the answer once in the prompt, in the needle's tokens",
                f"{seen} times in the prompt, {'' if prompt.answer in span else 'not '}in the needle, for {trial}",
            )
    return PASSED


def recalled(subject: Subject) -> Verdict:
    """The answer itself is right, nothing is wrong."""
    for trial, prompt in _prompts(subject)[:4]:
        for response, expected in ((prompt.answer, True), ("", False)):
            seen = subject.task.recalled(response, prompt)
            if seen is not expected:
                return Failed(f"recalled({response!r}) is {expected}", f"{seen!r} for {trial}")
    return PASSED


def refuses(subject: Subject) -> Verdict:
    """Settings that no prompt can be built for."""
    task, good = subject.task, _context(subject)
    impossible: dict[str, tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]] = {
        "no contexts": ((), (50.0,), (0,)),
        "no depths": ((good,), (), (0,)),
        "no seeds": ((good,), (50.0,), ()),
        "a depth of 101 percent": ((good,), (101.0,), (0,)),
        "a depth of -1 percent": ((good,), (-1.0,), (0,)),
    }
    for what, settings in impossible.items():
        try:
            task.check_settings(*settings)
        except KvfwError:
            continue
        return Failed(f"check_settings raises a KvfwError for {what}", "it accepts them")
    task.check_settings((good,), (50.0,), (0,))
    try:
        task.check(TOKENIZER, (2,), (50.0,), (0,))
    except KvfwError:
        return PASSED
    return Failed("check raises a KvfwError for a prompt of 2 tokens", "it accepts it")


def seeds_differ(subject: Subject) -> Verdict:
    """Repetitions are no repetitions if they repeat the prompt."""
    context = _context(subject)
    prompts = {digest(subject.task.prompt(TOKENIZER, Trial(context, 50.0, seed))) for seed in range(4)}
    return PASSED if len(prompts) == 4 else Failed("4 prompts for 4 seeds", f"{len(prompts)}")


PROPERTIES = (
    Property("task-length", "a prompt is exactly as long as its trial says", TASKS, length),
    Property("task-repeatable", "a trial gives the same prompt in every instance and process", TASKS, repeatable),
    Property("task-spans", "needle and context are spans of the prompt", TASKS, spans),
    Property("task-answer", "the answer stands in the prompt once, in the needle", TASKS, answer_once),
    Property("task-recalled", "the answer is recalled, an empty response is not", TASKS, recalled),
    Property("task-refuses", "impossible settings are refused before anything is built", TASKS, refuses),
    Property("task-seeds", "every seed gives another prompt", TASKS, seeds_differ),
)
