"""Probes: what they observe is the model's own attention, they leave no trace, and wrong ones are refused early."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.tiny_models import bound, build, forward, generate, prompt, same_bits, tiny
from kvfw.core.state.observation import Columns, Needs
from kvfw.errors import KvfwError, OptionError, SpecError, UnsupportedError
from kvfw.methods.scorers.kvzip import KVzip
from kvfw.model.compat.versions import passed
from kvfw.model.inspect.layers import anatomy
from kvfw.model.run.prefill import prefill
from kvfw.model.session import probing
from kvfw.model.session.attach import attach
from kvfw.model.session.probing import probe_texts, probed

LENGTH = 60
PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
PROBE = prompt(25, seed=9)[0].tolist()
LARGEST = Columns(over="max", heads="each", source="repeat")


def kvzip_block(model: Any, ids: Tensor, compose: str = "kvzip", **options: Any) -> Any:
    with attach(model, compose, ratio=4, probe_ids=PROBE, **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids, cache, **options)
    return cache


def test_a_probe_observes_the_models_own_attention() -> None:
    model, ids = build("llama", attention="eager"), prompt(LENGTH)
    filled = prefill(model, ids[0].tolist(), Needs(), **PROTECTED)
    found = probed(model, anatomy(model), filled.cache, Needs(columns=frozenset({LARGEST})), None, PROBE)
    with torch.inference_mode():
        whole = model(torch.cat((ids, torch.tensor([PROBE])), 1), output_attentions=True).attentions
    for index, seen in found.items():
        slow = whole[index][:, :, LENGTH:, :LENGTH].amax(2)
        torch.testing.assert_close(seen.columns[LARGEST], slow, atol=1e-5, rtol=1e-4)


def test_a_probe_leaves_no_trace() -> None:
    model, ids = build("llama"), prompt(LENGTH)
    with attach(model, "kvzip@global", keep=1, probe_ids=PROBE, **PROTECTED) as cache, torch.inference_mode():
        before = torch.get_rng_state()
        logits = forward(model, ids, cache)
        assert torch.equal(torch.get_rng_state(), before)
        assert cache.get_seq_length() == LENGTH
        later = forward(model, prompt(5, seed=3), cache)
    with attach(model, "snapkv", keep=1, **PROTECTED) as plain, torch.inference_mode():
        assert torch.equal(forward(model, ids, plain), logits)
        assert torch.equal(forward(model, prompt(5, seed=3), plain), later)


@pytest.mark.parametrize("compose", ["kvzip", "kvzip(plus=true)@global", "kvzip@global|refit"])
def test_rows_of_a_padded_batch_are_probed_as_alone(compose: str) -> None:
    model = build("llama")
    long, short = prompt(LENGTH), prompt(LENGTH - 13, seed=4)
    padding = torch.zeros(1, 13, dtype=torch.long)
    ids = torch.cat((long, torch.cat((padding, short), 1)))
    mask = torch.ones_like(ids)
    mask[1, :13] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    together = kvzip_block(model, ids, compose, attention_mask=mask, position_ids=places)
    for row, alone in enumerate((long, short)):
        own = kvzip_block(model, alone, compose)
        for index in range(3):
            ours, theirs = together.state(index), own.state(index)
            assert ours.valid[row].sum(-1).tolist() == theirs.valid[0].sum(-1).tolist()
            for head in range(2):
                mine = ours.positions[row, head][ours.valid[row, head]]
                assert mine.tolist() == theirs.positions[0, head][theirs.valid[0, head]].tolist()


def test_an_evaluation_keeps_what_an_attached_block_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "probe_texts", lambda *_: [PROBE])
    model, ids, by = build("llama"), prompt(LENGTH), bound("kvzip(plus=true)@global")
    tokenizer: Any = object()
    filled = prefill(model, ids[0].tolist(), by.needs, vocabulary=tokenizer, **PROTECTED)
    assert filled.probe_seconds > 0
    cache = kvzip_block(model, ids, "kvzip(plus=true)@global")
    states = filled.compressed_states(by)
    assert all(same_bits(cache.state(i), states[i]) for i in states)
    assert cache.report().waited
    assert "held until the prompt's forward was over, then probed" in str(cache.report())


def test_a_forward_that_was_interrupted_leaves_nothing_to_do() -> None:
    model, ids = build("llama"), prompt(LENGTH)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with attach(model, "snapkv@global", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        handle = model.model.layers[2].register_forward_pre_hook(stop)
        with pytest.raises(KeyboardInterrupt):
            forward(model, ids, cache)
        handle.remove()
        model(ids)
        assert not any(layer.compressed for layer in cache.compressed_layers())


class Words:
    """A tokenizer with one word per character."""

    chat_template = None
    all_special_ids: tuple[int, ...] = ()

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [chr(i) for i in ids]

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(letter) % 60 for letter in text]


def test_long_probes_are_fed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "CHUNK", 40)
    first, second = probe_texts("repeat", range(60), Words(), None)
    assert first[-40:] == list(range(40))
    # The second begins with the tokens before it, which say where the text goes on.
    assert second[-28:] == list(range(32, 60))
    assert [len(part) for part in probe_texts("repeat", [], None, list(range(90)))] == [40, 40, 10]


@pytest.mark.parametrize(
    ("compose", "options", "error", "says"),
    [
        ("kvzip", {}, UnsupportedError, "pass tokenizer=, or the probe's token ids"),
        ("kvzip(probe=nowhere.txt)", {"tokenizer": Words()}, OptionError, "neither 'repeat' nor a text file"),
        ("kvzip", {"probe_ids": []}, OptionError, "probe_ids is '\\[\\]'"),
        ("kvzip", {"probe_ids": [10**6]}, OptionError, "whole numbers from 0 to"),
        ("kvzip", {"probe_ids": "123"}, OptionError, "probe_ids is '123'"),
        ("kvzip", {"probe_ids": [1.5]}, OptionError, "whole numbers"),
        ("kvzip", {"probe_ids": PROBE, "recompress": True}, UnsupportedError, "a later compression has no probe"),
        ("kvzip(probe=prompt)", {}, SpecError, "a probe is repeat, or the path"),
    ],
)
def test_a_wrong_probe_is_refused_before_the_model_runs(
    compose: str, options: dict[str, Any], error: type[KvfwError], says: str
) -> None:
    with pytest.raises(error, match=says), attach(tiny("llama"), compose, ratio=4, **options):
        pytest.fail("attached")


def test_a_probe_file_has_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.txt").write_text(" \n", encoding="utf-8")
    for name, says in (("a.txt", "cannot be read as UTF-8"), ("b.txt", "is empty")):
        with (
            pytest.raises(OptionError, match=says),
            attach(tiny("llama"), f"kvzip(probe={tmp_path / name})", ratio=4, tokenizer=Words()),  # type: ignore[arg-type]
        ):
            pytest.fail("attached")
    assert KVzip(probe="some.txt").needs.probes == {"some.txt"}


def test_a_probe_needs_ids_and_positions() -> None:
    model, ids = build("llama", max_position_embeddings=70), prompt(LENGTH)
    with attach(model, "kvzip", ratio=4, probe_ids=PROBE, **PROTECTED) as cache, torch.inference_mode():
        with pytest.raises(UnsupportedError, match="need 85 positions, and this model has 70"):
            forward(model, ids, cache)
        embedded = model.get_input_embeddings()(ids)
    with (
        attach(model, "kvzip", ratio=4, probe_ids=PROBE, **PROTECTED) as cache,
        pytest.raises(UnsupportedError, match="input_ids"),
    ):
        model(inputs_embeds=embedded, **passed(model, cache), use_cache=True)


def test_generate_goes_on_after_a_probe() -> None:
    model, ids = build("llama"), prompt(LENGTH)
    with attach(model, "kvzip@global|refit", ratio=4, probe_ids=PROBE, **PROTECTED) as cache:
        tokens = generate(model, ids, 8, cache=cache)
    assert tokens.shape[1] == 8
    assert len({tuple(cache.state(i).valid.sum(-1)[0].tolist()) for i in range(3)}) > 1
