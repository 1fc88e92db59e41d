"""Prompts have the length asked for and hold the pair once, where they say; the judge takes whole numbers only."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from kvfw_pairs import kvfw_parts
from kvfw_pairs.metric import SameStart
from kvfw_pairs.task import Pairs

from kvfw import PromptError, Sample, Task, decoded


class Letters:
    """One token per piece: letters by threes, digits, other characters; a template with special tokens around."""

    chat_template: Any = "{{ user }}"
    all_special_ids: list[int]

    def __init__(self) -> None:
        self.pieces = ["<user>", "<model>"]
        self.all_special_ids = [0, 1]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        found = re.findall(r"<user>|<model>|[a-zA-Z]{1,3}|.|\n", text)
        self.pieces += [piece for piece in dict.fromkeys(found) if piece not in self.pieces]
        return [self.pieces.index(piece) for piece in found]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False, **kwargs: Any) -> Any:
        return "".join(self.pieces[token] for token in token_ids)

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> Any:
        return f"<user>{conversation[0]['content']}<model>"


@dataclass(frozen=True)
class Prompt:
    """A sample's one prompt as it is read."""

    sample: Sample
    input_ids: tuple[int, ...]
    needle: range
    answer: str
    context_end: int
    begun: str
    text: str


def prompt_of(tokenizer: Letters, context: int, depth: float, seed: int, task: Pairs | None = None) -> Prompt:
    """The prompt of one sample."""
    task = task or Pairs()
    sample = task.sample(tokenizer, task.ground(tokenizer, context, seed), context, float(depth), seed)
    ((turn,), (span,)) = sample.turns, sample.spans
    ids = sample.context_ids + turn.exact_ids
    begun = decoded(tokenizer, turn.begun_ids).strip()
    return Prompt(sample, ids, span, turn.references[0], len(sample.context_ids), begun, decoded(tokenizer, ids))


@pytest.fixture
def tokenizer() -> Letters:
    return Letters()


@pytest.mark.parametrize("context", [400, 401, 402, 403, 404, 405, 1000])
@pytest.mark.parametrize("depth", [0.0, 37.5, 100.0])
def test_prompts_are_exact_and_hold_the_pair_once(tokenizer: Letters, context: int, depth: float) -> None:
    prompt = prompt_of(tokenizer, context, depth, seed=0)
    assert len(prompt.input_ids) == context
    assert prompt.text == tokenizer.decode(list(prompt.input_ids))
    line = tokenizer.decode(list(prompt.input_ids)[prompt.needle.start : prompt.needle.stop])
    key, _, value = line.strip().partition(": ")
    assert (value, prompt.begun) == (prompt.answer, f"{key}:")
    assert prompt.text.count(line) == 1
    assert prompt.text.count(value) == 1
    after = tokenizer.decode(list(prompt.input_ids)[prompt.context_end :])
    assert after.strip().startswith(f"What is the value of {key}?")
    assert after.endswith(f"<model>{key}:")
    assert prompt.needle.stop <= prompt.context_end


def test_lines_are_pairs_with_keys_of_their_own(tokenizer: Letters) -> None:
    prompt = prompt_of(tokenizer, 800, 50, seed=1)
    context = tokenizer.decode(list(prompt.input_ids)[: prompt.context_end])
    lines = [line for line in context.splitlines()[1:] if line]
    assert all(re.fullmatch(r"[a-z]{6}: \d{3,6}", line) for line in lines)
    assert len({line.split(":")[0] for line in lines}) == len(lines) > 20


def test_depth_moves_the_same_kind_of_line(tokenizer: Letters) -> None:
    prompts = [prompt_of(tokenizer, 600, depth, seed=2) for depth in (0, 25, 50, 75, 100)]
    starts = [prompt.needle.start for prompt in prompts]
    assert starts == sorted(starts)
    first, last = prompts[0].needle.start, prompts[-1].needle.start
    assert prompts[-1].needle.stop == prompts[-1].context_end
    # 12 tokens are the longest line: half of it is how far the nearest line can be.
    assert abs(prompts[2].needle.start - (first + last) / 2) <= 6
    assert len({prompt.answer for prompt in prompts}) == 5


def test_the_same_trial_gives_the_same_prompt(tokenizer: Letters) -> None:
    assert prompt_of(tokenizer, 500, 30, seed=4) == prompt_of(another(tokenizer), 500, 30, seed=4)
    assert prompt_of(tokenizer, 500, 30, seed=4) != prompt_of(tokenizer, 500, 30, seed=5)


def another(tokenizer: Letters) -> Letters:
    """Another tokenizer of the same pieces."""
    other = Letters()
    other.pieces = list(tokenizer.pieces)
    return other


def test_without_a_begun_answer_the_model_begins(tokenizer: Letters) -> None:
    prompt = prompt_of(tokenizer, 500, 30, seed=0, task=Pairs(begin_answer=False))
    assert prompt.begun == ""
    assert prompt.text.endswith("<model>")


def test_only_the_whole_number_counts(tokenizer: Letters) -> None:
    task = Pairs()
    prompt = prompt_of(tokenizer, 500, 30, seed=0)
    for response, value in (
        (f" {prompt.answer}.", 1.0),
        (f" 1{prompt.answer}", 0.0),
        (f" {prompt.answer}0", 0.0),
        ("", 0.0),
    ):
        assert task.score(response, prompt.sample, prompt.sample.turns[0]) == {"recall": value}


def test_impossible_settings_are_refused(tokenizer: Letters) -> None:
    with pytest.raises(PromptError, match=r"too short.*Ask for at least \d+ tokens"):
        list(Pairs(contexts=(60,)).samples(tokenizer))
    with pytest.raises(PromptError, match="101 percent"):
        Pairs(depths=(101,)).check()
    with pytest.raises(PromptError, match="given twice"):
        Pairs(contexts=(500, 500)).check()


def test_the_least_context_it_names_is_enough(tokenizer: Letters) -> None:
    with pytest.raises(PromptError) as caught:
        list(Pairs(contexts=(60,)).samples(tokenizer))
    named = re.search(r"at least (\d+) tokens", str(caught.value))
    assert named is not None
    least = int(named.group(1))
    assert len(list(Pairs(contexts=(least,), depths=(0, 50, 100)).samples(tokenizer))) == 3


def test_the_entry_module_announces_both_parts() -> None:
    assert [(spec.kind.value, spec.name) for spec in kvfw_parts()] == [("task", "pairs"), ("metric", "same_start")]
    loaded: list[object] = [Pairs, SameStart]
    assert [spec.load() for spec in kvfw_parts()] == loaded
    assert isinstance(Pairs(), Task)
