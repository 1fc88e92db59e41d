"""The needle-in-a-haystack task, on small tokenizers trained on the shipped text."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from kvfw.core.contracts.task import Sample, Task, Tokenizer
from kvfw.errors import PromptError
from kvfw.tasks import haystack
from kvfw.tasks.niah.niah import CODE_ALPHABET, CODE_CHARS, MIN_HAYSTACK_TOKENS, WORDINGS, Niah, planted
from kvfw.tasks.prompting import decoded

if TYPE_CHECKING:
    from kvfw.model.load.load import LoadedModel

CHAT = (
    "{% for m in messages %}<|im|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im|>assistant\n{% endif %}"
)
BOS_CHAT = "<s>{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}"
DATED_CHAT = "{% if not date_string %}{% set date_string = raise_no_date() %}{% endif %}{{ date_string }}" + CHAT
SPECIAL = ("<unk>", "<s>", "<|im|>", "<|end|>")
KINDS = ("chat", "bos_chat", "plain", "plain_bos", "spaced")


def byte_level(lower_case: bool = False) -> RawTokenizer:
    """A byte-level BPE: every text has ids, and they give it back."""
    raw = RawTokenizer(models.BPE())
    if lower_case:
        raw.normalizer = normalizers.Lowercase()
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    raw.train_from_iterator([haystack.shipped()[:120_000]], trainer)
    return raw


def metaspace() -> RawTokenizer:
    """A BPE of the SentencePiece sort, which puts a space before every text and drops it when decoding."""
    raw = RawTokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=list(SPECIAL), show_progress=False)
    raw.train_from_iterator([haystack.shipped()[:120_000], CODE_ALPHABET], trainer)
    return raw


def with_bos(raw: RawTokenizer) -> RawTokenizer:
    """The same tokenizer, which puts its first token before every text."""
    copy = RawTokenizer.from_str(raw.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", copy.token_to_id("<s>"))]
    )
    return copy


def wrapped(raw: RawTokenizer, template: str | None) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers offers it."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", unk_token="<unk>", eos_token="<|end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<|im|>", special=True)]})
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    """One tokenizer of each kind."""
    raw = byte_level()
    return {
        "chat": wrapped(raw, CHAT),
        "bos_chat": wrapped(with_bos(raw), BOS_CHAT),
        "plain": wrapped(raw, None),
        "plain_bos": wrapped(with_bos(raw), None),
        "spaced": wrapped(with_bos(metaspace()), CHAT),
        "twice": wrapped(raw, "{{ messages[0]['content'] }}{{ messages[0]['content'] }}"),
        "dated": wrapped(raw, DATED_CHAT),
    }


@pytest.fixture(scope="session")
def chat(tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers["chat"]


@dataclass(frozen=True)
class Trial:
    """Which sample of the grid."""

    context_tokens: int
    depth_percent: float
    seed: int


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


def prompt_of(tokenizer: Tokenizer, trial: Trial, task: Niah | None = None) -> Prompt:
    """The prompt of one sample, whatever its seed, without those of the seeds before."""
    task = task or Niah()
    ground = task.ground(tokenizer, trial.context_tokens, trial.seed, haystack.read(task.haystack))
    sample = planted(tokenizer, ground, trial.context_tokens, float(trial.depth_percent), trial.seed)
    ((turn,), (span,)) = sample.turns, sample.spans
    ids = sample.context_ids + turn.exact_ids
    begun = decoded(tokenizer, turn.begun_ids).strip()
    return Prompt(sample, ids, span, turn.references[0], len(sample.context_ids), begun, decoded(tokenizer, ids))


def built(tokenizer: Tokenizer, task: Niah) -> list[Sample]:
    """All samples of a task."""
    return list(task.samples(tokenizer))


def hay_before_and_after(tokenizer: Tokenizer, prompt: Prompt) -> tuple[int, int]:
    """Haystack tokens before and after the needle, counted from the decoded head's last words."""
    ids = list(prompt.input_ids)
    head = next(n for n in range(len(ids)) if decoded(tokenizer, ids[:n]).rstrip().endswith("Text:"))
    return prompt.needle.start - head, prompt.context_end - prompt.needle.stop


trials = st.builds(
    Trial,
    context_tokens=st.integers(256, 1500),
    depth_percent=st.floats(0, 100) | st.sampled_from([0.0, 100.0]),
    seed=st.integers(0, 10**6),
)
drawn = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


def test_is_a_task() -> None:
    task: Task = Niah()
    assert isinstance(task, Task)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begin", [True, False])
@given(trial=trials)
@drawn
def test_laws(tokenizers: dict[str, Tokenizer], kind: str, begin: bool, trial: Trial) -> None:
    tokenizer = tokenizers[kind]
    prompt = prompt_of(tokenizer, trial, Niah(begin_answer=begin))
    ids = list(prompt.input_ids)
    assert len(ids) == trial.context_tokens
    assert prompt.text == decoded(tokenizer, ids)
    assert prompt.text.count(prompt.answer) == 1
    span = decoded(tokenizer, ids[prompt.needle.start : prompt.needle.stop]).strip()
    assert any(span == wording.needle.format(code=prompt.answer) for wording in WORDINGS)
    assert 0 < prompt.needle.start < prompt.needle.stop <= prompt.context_end < trial.context_tokens
    assert len(prompt.answer) == CODE_CHARS
    assert set(prompt.answer) <= set(CODE_ALPHABET)
    assert not prompt.answer.isalpha()
    assert not prompt.answer.isdigit()
    assert bool(prompt.begun) is begin
    assert prompt.text.endswith(prompt.begun)
    assert "\ufffd" not in prompt.text[: prompt.text.index(prompt.answer)]


@pytest.mark.parametrize("kind", KINDS)
def test_tail_fits_the_recent_window(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    for seed in range(12):
        prompt = prompt_of(tokenizers[kind], Trial(512, 50, seed))
        # The founding experiment's recent window; a real vocabulary splits words less than these do.
        assert 512 - prompt.context_end <= 84


@given(seed=st.integers(0, 1000), depths=st.lists(st.floats(0, 100), min_size=2, max_size=6).map(sorted))
@drawn
def test_deeper_is_never_earlier(chat: Tokenizer, seed: int, depths: list[float]) -> None:
    prompts = [prompt_of(chat, Trial(400, depth, seed)) for depth in depths]
    begins = [prompt.needle.start for prompt in prompts]
    assert begins == sorted(begins)


@pytest.mark.parametrize("kind", KINDS)
@given(trial=trials)
@drawn
def test_needle_stands_near_its_depth_between_words(tokenizers: dict[str, Tokenizer], kind: str, trial: Trial) -> None:
    prompt = prompt_of(tokenizers[kind], trial)
    before, after = hay_before_and_after(tokenizers[kind], prompt)
    wanted = trial.depth_percent / 100 * (before + after)
    # A long word of a small vocabulary is the only reason to be farther away than a sentence's start may be.
    assert abs(before - wanted) <= haystack.SENTENCE_TOLERANCE_TOKENS + 8 <= haystack.WORD_TOLERANCE_TOKENS
    at = prompt.text.index(next(w.needle for w in WORDINGS if w.begun in prompt.text).partition("{")[0])
    assert prompt.text[at - 1].isspace()
    end = prompt.text.index(".", prompt.text.index(prompt.answer)) + 1
    assert prompt.text[end].isspace()


def test_both_ends_of_the_text(tokenizers: dict[str, Tokenizer]) -> None:
    for kind in KINDS:
        assert hay_before_and_after(tokenizers[kind], prompt_of(tokenizers[kind], Trial(600, 0, 3)))[0] == 0
        assert hay_before_and_after(tokenizers[kind], prompt_of(tokenizers[kind], Trial(600, 100, 3)))[1] == 0


def test_trials_of_one_length_and_seed_share_text_and_wording(chat: Tokenizer) -> None:
    prompts = [prompt_of(chat, Trial(600, depth, 5)) for depth in (0, 10, 35.5, 90, 100)]
    without = [p.input_ids[: p.needle.start] + p.input_ids[p.needle.stop :] for p in prompts]
    assert len(set(without)) == 1
    assert len({p.answer for p in prompts}) == len(prompts)
    assert len({p.begun for p in prompts}) == len({p.context_end for p in prompts}) == 1


def test_text_and_wording_vary_by_length_and_seed(chat: Tokenizer) -> None:
    prompts = [prompt_of(chat, Trial(length, 100, seed)) for length in (400, 500) for seed in range(8)]
    texts = {prompt.text.partition("Text:")[2][:200] for prompt in prompts}
    assert len(texts) == len(prompts)
    assert len({prompt.begun for prompt in prompts}) > 2


def test_depth_written_as_int_or_float_is_the_same_trial(chat: Tokenizer) -> None:
    assert prompt_of(chat, Trial(400, 10, 1)) == prompt_of(chat, Trial(400, 10.0, 1))


@pytest.mark.parametrize(
    ("depth", "text"),
    [(0, "0"), (0.25, "0.25"), (10.0, "10"), (33.3, "33.3"), (0.1234567, "0.1234567"), (0.1234568, "0.1234568")],
)
def test_samples_are_named_by_their_whole_depth(chat: Tokenizer, depth: float, text: str) -> None:
    assert prompt_of(chat, Trial(400, depth, 1)).sample.id == f"400-{text}-1"


def test_draws_are_equal_in_another_process() -> None:
    program = (
        "from kvfw.tasks.niah.niah import draw_code, stable_random;"
        "print(draw_code(stable_random('niah', 1024, 3, 10.0)))"
    )
    codes = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(codes) == 1


def test_imports_neither_torch_nor_transformers() -> None:
    program = "import sys, kvfw.tasks.niah.niah; print({'torch', 'transformers'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_beginning_token_stands_once(tokenizers: dict[str, Tokenizer]) -> None:
    for kind in ("bos_chat", "plain_bos"):
        prompt = prompt_of(tokenizers[kind], Trial(400, 50, 0))
        assert prompt.text.startswith("<s>")
        assert prompt.text.count("<s>") == 1
    assert "<s>" not in prompt_of(tokenizers["plain"], Trial(400, 50, 0)).text


def test_template_with_a_date_gets_a_fixed_one(tokenizers: dict[str, Tokenizer]) -> None:
    assert prompt_of(tokenizers["dated"], Trial(400, 50, 0)).text.startswith("1 January 2025")


def test_recall_is_the_code_as_written(chat: Tokenizer) -> None:
    prompt = prompt_of(chat, Trial(400, 50, 0))
    for response, value in (
        (f" {prompt.answer}.", 1.0),
        (prompt.answer.lower(), 0.0),
        (prompt.answer[1:], 0.0),
        ("", 0.0),
    ):
        assert Niah().score(response, prompt.sample, prompt.sample.turns[0]) == {"recall": value}


def test_options() -> None:
    assert Niah() == Niah(contexts=(1024,), depths=(10, 30, 50, 70, 90), seeds=1, haystack=None, begin_answer=True)
    with pytest.raises(ValidationError, match="frozen"):
        Niah().begin_answer = False  # type: ignore[misc]  # the point of the test
    with pytest.raises(ValidationError, match="Extra inputs"):
        Niah.model_validate({"depth": 3})


# --- what is refused ---


def test_check_passes_what_can_be_built(chat: Tokenizer) -> None:
    task = Niah(contexts=(400, 500), depths=(0, 50, 100), seeds=2)
    task.check()
    samples = built(chat, task)
    # Lengths, then seeds, then depths; one group per length and seed.
    assert [sample.id for sample in samples[:4]] == ["400-0-0", "400-50-0", "400-100-0", "400-0-1"]
    assert [sample.group for sample in samples[::3]] == ["400/0", "400/1", "500/0", "500/1"]
    assert samples[-1].facets == {"context": 500, "depth": 100.0, "seed": 1}
    assert list(samples[-1].facets) == ["context", "depth", "seed"]
    assert samples[4] == prompt_of(chat, Trial(400, 50, 1)).sample


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Niah(contexts=(400, 400)), "contexts: 400 is given twice"),
        (Niah(depths=(50, 50.0)), "depths: 50 is given twice"),
        (Niah(contexts=()), "contexts: none given"),
        (Niah(depths=(-1,)), "-1 percent .* from 0 .* to 100"),
        (Niah(depths=(100.5,)), "100.5 percent"),
    ],
)
def test_check_refuses(task: Niah, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        task.check()


def test_seeds_and_depths_must_be_numbers_in_range() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Niah(seeds=0)
    with pytest.raises(ValidationError, match="finite"):
        Niah(depths=(float("nan"),))


@pytest.mark.parametrize("kind", KINDS)
def test_least_context_named_is_enough_for_every_wording(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    with pytest.raises(PromptError, match=r"at least \d+ tokens") as caught:
        built(tokenizer, Niah(contexts=(10,)))
    least = int(str(caught.value).rpartition("at least ")[2].split()[0])
    built(tokenizer, Niah(contexts=(least,), depths=(0, 50, 100), seeds=20))
    with pytest.raises(PromptError, match="too short"):
        built(tokenizer, Niah(contexts=(least - MIN_HAYSTACK_TOKENS,)))


@pytest.fixture
def text_file(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(content: bytes) -> Path:
        path = tmp_path / "text.txt"
        path.write_bytes(content)
        return path

    return write


def test_missing_haystack(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"absent\.txt cannot be read: No such file"):
        Niah(haystack=tmp_path / "absent.txt").check()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc \xff\xfe", "not UTF-8: byte 4 is 0xff"),
        (b" \n\t\n", "holds no text"),
        (b"The sea is <|im|> wide. " * 200, "holds '<|im|>', a special token".replace("|", r"\|")),
    ],
)
def test_unfit_haystack(chat: Tokenizer, text_file: Callable[[bytes], Path], content: bytes, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        built(chat, Niah(contexts=(400,), haystack=text_file(content)))


def test_short_haystack_is_counted_in_tokens(chat: Tokenizer, text_file: Callable[[bytes], Path]) -> None:
    text = "The sea is wide and grey. " * 10
    path = text_file(text.encode())
    count = len(chat.encode(haystack.read(path), add_special_tokens=False))
    with pytest.raises(PromptError, match=rf"has {count} tokens and \d+ are needed"):
        built(chat, Niah(haystack=path))


def test_haystack_just_long_enough_is_used_whole(chat: Tokenizer, text_file: Callable[[bytes], Path]) -> None:
    text = "The sea is wide and grey. It has no end that a man can see! So he sails on. " * 30
    path = text_file(text.encode())
    count = len(chat.encode(haystack.read(path), add_special_tokens=False))
    with pytest.raises(PromptError, match="are needed") as caught:
        prompt_of(chat, Trial(5000, 50, 0), Niah(haystack=path))
    needed = int(str(caught.value).partition(" are needed")[0].rpartition(" ")[2])
    # Wording and code vary with the length, and so does the room they leave.
    longest = 5000 - needed + count
    for context in range(longest - 60, longest - 30):
        prompt = prompt_of(chat, Trial(context, 50, 0), Niah(haystack=path))
        assert prompt.text.partition("Text:")[2].lstrip().startswith(("The sea", "It has", "So he", prompt.begun))
    with pytest.raises(PromptError, match="are needed"):
        prompt_of(chat, Trial(longest + 30, 50, 0), Niah(haystack=path))


@pytest.mark.parametrize(
    "text",
    [
        "wide grey sea " * 400,
        "\r\nLine one is here.\r\nLine two is there.\r\n" * 100,
        "海は広い。空は青い。" * 300,
        "\ufeffA first word. " + "And more of them, always more. " * 100,
    ],
)
def test_odd_haystacks(chat: Tokenizer, text_file: Callable[[bytes], Path], text: str) -> None:
    path = text_file(text.encode())
    for depth in (0, 33, 100):
        prompt = prompt_of(chat, Trial(500, depth, 1), Niah(haystack=path))
        assert len(prompt.input_ids) == 500
        assert prompt.text.count(prompt.answer) == 1


def test_haystack_without_words_is_refused(chat: Tokenizer, text_file: Callable[[bytes], Path]) -> None:
    path = text_file(b"x" * 9000)
    with pytest.raises(PromptError, match="no word of the haystack starts within 32 tokens of depth 50 percent"):
        prompt_of(chat, Trial(500, 50, 1), Niah(haystack=path))


@given(wanted=st.floats(0, 40), count=st.integers(40, 50))
def test_outwards_visits_all_by_distance(wanted: float, count: int) -> None:
    visited = list(haystack.outwards(wanted, count))
    assert visited == sorted(range(count + 1), key=lambda index: (abs(index - wanted), index))


def test_needle_between_sentences_without_spaces(chat: Tokenizer, text_file: Callable[[bytes], Path]) -> None:
    path = text_file(("海は広い。" * 600).encode())
    prompt = prompt_of(chat, Trial(600, 50, 1), Niah(haystack=path))
    assert prompt.text.partition(f" {prompt.begun}")[0].endswith("。")


def test_code_in_the_haystack_is_refused(chat: Tokenizer, text_file: Callable[[bytes], Path]) -> None:
    code = prompt_of(chat, Trial(500, 50, 0)).answer
    path = text_file(f"The sea was calm, {code} said. ".encode() * 300)
    with pytest.raises(PromptError, match=rf"code '{code}' stands \d+ times"):
        built(chat, Niah(contexts=(500,), depths=(50,), haystack=path))


def test_lower_casing_tokenizer_is_refused() -> None:
    with pytest.raises(PromptError, match=r"stands 0 times .*lower case"):
        built(wrapped(byte_level(lower_case=True), CHAT), Niah(contexts=(500,)))


def test_template_that_repeats_the_message_is_refused(tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(PromptError, match="prints the user's message 2 times"):
        built(tokenizers["twice"], Niah(contexts=(500,)))


# --- on the embedded model ---


@pytest.mark.real
def test_embedded_tokenizer_at_the_founding_lengths(smollm: "LoadedModel") -> None:
    contexts = (1024, 2048, 3072)
    assert len(built(smollm.tokenizer, Niah(contexts=contexts, seeds=3))) == 45
    for context in contexts:
        prompt = prompt_of(smollm.tokenizer, Trial(context, 50, 0))
        assert context - prompt.context_end <= 60
        assert prompt.text.startswith("<|im_start|>system\n")
        assert f"<|im_start|>assistant\n{prompt.begun}" in prompt.text


@pytest.mark.real
def test_embedded_model_finds_the_needle(smollm: "LoadedModel") -> None:
    import torch

    hits = 0.0
    for depth in (30, 50, 70):
        prompt = prompt_of(smollm.tokenizer, Trial(1024, depth, 0))
        ids = torch.tensor([prompt.input_ids], device=smollm.model.device)
        generate: Callable[..., torch.Tensor] = getattr(smollm.model, "generate")  # noqa: B009
        output = generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
        response = str(smollm.tokenizer.decode(output[0, 1024:]))
        hits += Niah().score(response, prompt.sample, prompt.sample.turns[0])["recall"]
    assert hits >= 2
