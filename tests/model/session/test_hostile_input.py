"""Input that nobody would choose: a right answer or one clear error, never nonsense that looks like a result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from helpers.tiny_folder import write_tiny_folder
from helpers.tiny_models import build, close, forward, generate, prompt, tiny
from kvfw.cli.main import run
from kvfw.core.ops.attention import window_attention
from kvfw.core.state.observation import Observation, protect
from kvfw.core.state.state import exact_state
from kvfw.errors import PromptError, RunError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.load.load import load_model
from kvfw.model.session.attach import attach
from kvfw.tasks.haystack import shipped
from kvfw.tasks.niah.niah import Niah

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH, NEW = 60, 8
METHODS = (
    "uniform",
    "streaming",
    "streaming(positions=cache)",
    "h2o",
    "h2o(local=5)",
    "snapkv",
    "ewmeans_post",
    "ewmeans_pre",
    "snapkv:0.8+ewmeans_pre:0.2",
    "merge(merger=ewmeans,space=pre,weight=h2o,bias=log)",
)


def sound(composition: str, ids: Tensor, expected: int, **options: Any) -> None:
    """Generates, and checks that every slot of every layer is finite and that there are as many as there should be."""
    with attach(tiny("llama"), composition, **options) as cache:
        generate(tiny("llama"), ids, NEW, cache=cache)
    for layer in cache.compressed_layers():
        state = layer.state
        assert state.valid.sum(-1).flatten().tolist() == [expected] * 2
        assert all(bool(x[state.valid].isfinite().all()) for x in (state.keys, state.values, state.positions))


@pytest.mark.parametrize("composition", METHODS)
def test_one_token_over_and_over(composition: str) -> None:
    sound(composition, torch.full((1, LENGTH), 7), 24 + NEW - 1, ratio=4, **PROTECTED)


@pytest.mark.parametrize("composition", METHODS)
def test_a_single_slot(composition: str) -> None:
    sound(composition, prompt(LENGTH), 1 + NEW - 1, slots=1, sinks=0, recent=0)
    # One more token is fed than is a multiple of two.
    sound(composition, prompt(LENGTH), 1 + (NEW - 1) % 2, slots=1, sinks=0, recent=0, compress_every=2)


@pytest.mark.parametrize("composition", METHODS)
def test_a_prompt_shorter_than_what_is_always_kept_is_left_alone(composition: str) -> None:
    model = tiny("llama")
    for ids in (prompt(5), prompt(1)):
        sound(composition, ids, ids.shape[1] + NEW - 1, ratio=4, **PROTECTED)
        with attach(model, composition, ratio=4, **PROTECTED) as cache:
            assert torch.equal(generate(model, ids, NEW, cache=cache), generate(model, ids, NEW))


def test_an_empty_prompt_is_refused() -> None:
    model, nothing = tiny("llama"), torch.zeros(1, 0, dtype=torch.int64)
    calls: tuple[Callable[[CompressedCache], Any], ...] = (
        lambda cache: forward(model, nothing, cache),
        lambda cache: generate(model, nothing, 2, cache=cache),
    )
    for call in calls:
        with (
            pytest.warns(UserWarning, match="compressed nothing"),
            attach(model, "snapkv", ratio=4) as cache,
            pytest.raises(PromptError, match="the prompt has no tokens"),
        ):
            call(cache)


@pytest.mark.parametrize("composition", ["streaming", "snapkv", "ewmeans_post", "h2o"])
@pytest.mark.parametrize(("where", "value"), [("k_proj", torch.nan), ("k_proj", torch.inf), ("v_proj", torch.nan)])
def test_numbers_that_are_none_are_named_by_layer(composition: str, where: str, value: float) -> None:
    model: Any = build("llama")
    getattr(model.model.layers[1].self_attn, where).weight[3, 3] = value
    kind = "keys" if where == "k_proj" else "values"
    with (
        pytest.raises(RunError, match=f"layer 1 has {kind} that are NaN or infinite"),
        attach(model, composition, ratio=4, **PROTECTED) as cache,
    ):
        generate(model, prompt(LENGTH), 2, cache=cache)


@pytest.mark.parametrize("composition", [*METHODS, "pinned", "snapkv(window=20)"])
def test_padding_in_the_midst_of_a_text_is_as_if_it_were_not_there(composition: str, tiny_folder: Path) -> None:
    loaded = load_model(str(tiny_folder), device="cpu")
    text = torch.tensor(loaded.tokenizer(shipped()[:4000])["input_ids"])[None, :LENGTH]
    # Some before the text, some in its middle, some among the last queries.
    mask = torch.ones(1, LENGTH + 15, dtype=torch.int64)
    for holes in (slice(0, 5), slice(24, 29), slice(60, 65)):
        mask[:, holes] = 0
    padded = torch.full_like(mask, int(loaded.tokenizer.pad_token_id))
    padded[mask == 1] = text[0]
    found = []
    for ids, given in ((text, torch.ones_like(text)), (padded, mask)):
        with attach(loaded.model, composition, ratio=4, tokenizer=loaded.tokenizer, **PROTECTED) as cache:
            answer = generate(loaded.model, ids, NEW, cache=cache, attention_mask=given)
        found.append((answer, [cache.state(i) for i in range(2)]))
    (answer, alone), (same, beside) = found
    assert torch.equal(answer, same)
    for one, other in zip(alone, beside, strict=True):
        assert one.mass.tolist() == other.mass.tolist()
        close(one.positions, other.positions)
        close(one.keys, other.keys)


@pytest.mark.parametrize("chunk", [7, 15, 26])
@pytest.mark.parametrize("composition", ["h2o", "snapkv(window=16)"])
def test_a_piece_of_a_prompt_may_end_in_padding(composition: str, chunk: int) -> None:
    # In pieces of 7 and 15 the first of the second row are all padding, in pieces of 26 a hole in the third row is cut.
    model, ids, mask = tiny("llama"), prompt(LENGTH, rows=3), torch.ones(3, LENGTH, dtype=torch.int64)
    mask[1, :20] = 0
    mask[2, 24:29] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    found = []
    for size in (LENGTH, chunk):
        with (
            attach(model, composition, ratio=4, prompt_tokens=LENGTH, **PROTECTED) as cache,
            torch.inference_mode(),
        ):
            for start in range(0, LENGTH, size):
                piece, end = slice(start, start + size), min(start + size, LENGTH)
                forward(model, ids[:, piece], cache, attention_mask=mask[:, :end], position_ids=places[:, piece])
        found.append([layer.state for layer in cache.compressed_layers()])
    for one, other in zip(*found, strict=True):
        assert one.mass.tolist() == other.mass.tolist()
        close(one.positions[one.valid], other.positions[other.valid])
        close(one.keys[one.valid], other.keys[other.valid])


def test_padding_that_is_not_finite_harms_nobody() -> None:
    from kvfw.core.compress.scores import check_finite

    keys = torch.randn(1, 2, 6, 4)
    keys[:, :, :2] = torch.nan
    real = torch.tensor([[False, False, True, True, True, True]])
    state = exact_state(keys, torch.zeros(1, 2, 6, 4), torch.arange(6.0)[None], real)
    check_finite(Observation(state=state, protected=protect(state.valid, 0, 0), scale=1.0, layer=0))


def test_large_finite_keys_in_half_precision_are_no_error() -> None:
    from kvfw.core.compress.scores import check_finite

    keys = torch.full((1, 1, 64, 64), 60000.0, dtype=torch.float16)
    state = exact_state(keys, keys, torch.arange(64.0)[None], torch.ones(1, 64, dtype=torch.bool))
    check_finite(Observation(state=state, protected=protect(state.valid, 0, 0), scale=1.0, layer=0))


def test_a_query_whose_slots_are_all_gone_adds_nothing() -> None:
    # Of two queries the first stands before the only slots left; the scores are those of the second, halved.
    keys = torch.randn(1, 1, 2, 4)
    state = exact_state(keys, keys, torch.tensor([[8.0, 9.0]]), torch.ones(1, 2, dtype=torch.bool))
    queries = torch.randn(1, 1, 2, 4)

    def looked_at(rows: slice, positions: list[float]) -> Tensor:
        return window_attention(
            Observation(
                state=state,
                protected=protect(state.valid, 0, 0),
                scale=0.5,
                layer=0,
                queries=queries[:, :, rows],
                query_positions=torch.tensor([positions]),
            )
        )

    both, second = looked_at(slice(0, 2), [5.0, 9.0]), looked_at(slice(1, 2), [9.0])
    close(both, second / 2)
    assert not bool(both.isnan().any())


# --- from the command line -------------------------------------------------------------------------------

TEXT = "The whale swam on and on through the deep green water. " * 12


def test_weights_that_are_no_numbers_end_in_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_folder(tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.self_attn.k_proj.weight"][0, 0] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert run(["generate", TEXT, "--model", str(folder), "--max-new-tokens", "2", "--compose", "streaming"]) == 1
    printed = capsys.readouterr()
    assert printed.err.count("error:") == 1
    assert "layer 1 has keys that are NaN or infinite" in printed.err


def test_a_tokenizer_without_a_chat_template_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_folder(tmp_path / "plain")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    model = ["--model", str(folder)]
    assert run(["generate", TEXT, *model, "--max-new-tokens", "2", "--compose", "snapkv"]) == 0
    grid = ["--contexts", "400", "--depths", "50", "--max-new-tokens", "2", "--out", str(tmp_path / "run")]
    assert run(["eval", *model, *grid, "--compose", "snapkv"]) == 0
    assert "Traceback" not in capsys.readouterr().err


SCRIPTS = {
    "chinese": "鲸鱼在深绿色的海水里游啊游。船长站在甲板上，望着远处的灯塔！明天会是怎样的一天呢？",
    "arabic": "كان الحوت يسبح في الماء الأخضر العميق. ووقف القبطان على سطح السفينة ينظر إلى المنارة. ",
    "hindi": "व्हेल गहरे हरे पानी में तैरती रही। कप्तान डेक पर खड़ा होकर दूर के प्रकाशस्तंभ को देखता रहा। ",
    "emoji": "🐋 🌊 👨‍👩‍👧‍👦 swims 🚢. ",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_haystack_in_any_script(
    script: str, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The tokenizer was trained on English: most characters take several tokens, and a needle must not part them.
    haystack = tmp_path / "haystack.txt"
    haystack.write_text(SCRIPTS[script] * 200, encoding="utf-8")
    options = ["--model", str(tiny_folder), "--contexts", "700", "--depths", "10,50,90", "--max-new-tokens", "2"]
    out = ["--out", str(tmp_path / "run")]
    assert run(["eval", *options, "--haystack", str(haystack), *out, "--compose", "snapkv"]) == 0
    assert "Traceback" not in capsys.readouterr().err
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_folder)
    (planted,) = Niah(contexts=(700,), depths=(50.0,), haystack=haystack).samples(tokenizer)
    before, after = (str(tokenizer.decode(list(planted.context_ids[part]))) for part in around(planted.spans[0]))
    assert "�" not in (before[-1], after[0])


def around(span: range) -> tuple[slice, slice]:
    """The 40 tokens before a span and the 40 after it."""
    return slice(span.start - 40, span.start), slice(span.stop, span.stop + 40)


def test_a_tokenizer_that_merges_across_words_keeps_the_needle_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Its tokens hold a word's end and the next one's beginning, so in running text the needle's edges would be merged.
    folder = write_tiny_folder(tmp_path / "merging")
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "<|im|>", "<|end|>"],
        show_progress=False,
    )
    text = shipped()[:20_000].replace("\n", " ")
    raw.train_from_iterator([text[i : i + 400] for i in range(0, 20_000, 400)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.save_pretrained(folder)
    (planted,) = Niah(contexts=(400,), depths=(50.0,)).samples(tokenizer)
    ids, (span,) = list(planted.context_ids), planted.spans
    assert planted.turns[0].references[0] in str(tokenizer.decode(ids[span.start : span.stop]))
    assert tokenizer.encode(str(tokenizer.decode(ids)), add_special_tokens=False) != ids
    grid = ["--contexts", "400", "--depths", "50", "--max-new-tokens", "2", "--out", str(tmp_path / "run")]
    assert run(["eval", "--model", str(folder), *grid, "--compose", "snapkv"]) == 0, capsys.readouterr().err


def test_generate_compresses_while_answering(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", str(tiny_folder), "--compose", "h2o", "--compose", "snapkv", "--max-new-tokens", "60"]
    assert run(["generate", TEXT, *model, "--slots", "100", "--compress-every", "8"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("at most") == 3
    assert run(["generate", TEXT, *model, "--slots", "100", "--compress-every", "0"]) == 2
    assert "compress_every is 0" in capsys.readouterr().err
    assert run(["generate", TEXT, "--compose", "pinned", "--compress-every", "8", *model[:2]]) == 2
    assert "lexical features" in capsys.readouterr().err


def test_a_short_prompt_may_grow_into_its_slots(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--model", str(tiny_folder), "--compose", "snapkv", "--max-new-tokens", "60", "--recent", "32"]
    assert run(["generate", "A story", *few, "--slots", "48", "--compress-every", "8"]) == 0
    assert "at most" in capsys.readouterr().out
    # Without an answer that fills them, and for a part of a middle there is not, it is said at once.
    for refused in (["--slots", "48"], ["--ratio", "4", "--compress-every", "8"]):
        assert run(["generate", "A", *few, *refused]) == 2
        assert "too short to compress" in capsys.readouterr().err
