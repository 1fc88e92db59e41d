"""Rows answered in batches: which go together, and that a batch answers as its rows do alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.contracts.records import RowKey
from kvfw.core.contracts.task import Turn
from kvfw.core.parts.part import Part
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import default_registry, register
from kvfw.core.state.observation import Needs
from kvfw.model.load.load import load_model
from kvfw.model.load.sentence import SentenceEncoder
from kvfw.model.run import batch as together
from kvfw.model.run import decode
from kvfw.model.run.prefill import Prefill, prefill
from kvfw.runner.execute.answers import BATCH_ROWS, Answer, Tools, answers, batches, compressed, rows_at_once
from kvfw.runner.plan.prepare import Question, Row

COMPOSITIONS = ("streaming", "uniform", "snapkv(window=16)", "snapkv(window=16):0.5+ewmeans_pre(iters=2):0.5")
NEW, QUESTION = 6, tuple(range(5, 12))


def row(text: str, ratio: int = 4) -> Row:
    by = compressor(parse(text), amount(ratio=ratio), sinks=4, recent=8)
    return Row(RowKey(str(by.composition), str(by.amount)), by)


def answered(
    tools: Tools, filled: Prefill, rows: Sequence[Row], exact: Sequence[int] = (), follow: tuple[int, ...] = ()
) -> tuple[Answer, ...]:
    """Every row's answer from one batch."""
    turn = Turn(QUESTION, max_new_tokens=NEW, follow_ids=follow)
    ready, failed = compressed(filled, rows)
    assert not failed
    return answers(filled, ready, Question(0, turn, tuple(exact), timed=False, sha256="0" * 64), tools)


@pytest.fixture(scope="module")
def tools(tiny_folder: Path) -> Tools:
    return Tools(load_model(str(tiny_folder), device="cpu"), SentenceEncoder())


@pytest.fixture(scope="module")
def filled(tools: Tools) -> Prefill:
    ids = [(7 * i * i + 3 * i) % 90 + 5 for i in range(120)]
    return prefill(tools.loaded.model, ids, Needs(queries=84), sinks=4, recent=8)


def test_batches_keep_the_order_and_hold_one_amount() -> None:
    rows = [row(text, ratio) for ratio in (2, 4) for text in COMPOSITIONS]
    found = list(batches(rows, 3))
    assert [len(batch) for batch in found] == [3, 1, 3, 1]
    assert [each for batch in found for each in batch] == rows
    assert all(len({each.key.amount for each in batch}) == 1 for batch in found)
    assert list(batches([], 3)) == []
    many = [row(f"snapkv(window={n})") for n in range(1, BATCH_ROWS + 2)]
    assert [len(batch) for batch in batches(many, BATCH_ROWS)] == [BATCH_ROWS, 1]


@pytest.mark.parametrize("question", [(), QUESTION], ids=["aware", "agnostic"])
def test_a_batch_answers_as_its_rows_do_alone(tools: Tools, filled: Prefill, question: Sequence[int]) -> None:
    rows = [row(text) for text in COMPOSITIONS]
    batch = answered(tools, filled, rows, question)
    singles = [answered(tools, filled, [one], question)[0] for one in rows]
    for each, alone in zip(batch, singles, strict=True):
        assert each.response == alone.response
        assert each.report.kv_bytes == alone.report.kv_bytes
        assert set(each.seconds) == {"prefill", "probe", "compress", "decode"}
    # The question's own slots are held, too.
    slots = 4 + (120 - 12) // 4 + 8 + len(question)
    assert all(layer.slots == (slots, slots) for layer in batch[0].report.layers)


@pytest.mark.parametrize("question", [(), QUESTION], ids=["aware", "agnostic"])
def test_a_text_to_follow_stands_in_place_of_every_rows_response(
    tools: Tools, filled: Prefill, question: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, follow = [row(text) for text in COMPOSITIONS], (9, 8, 7, 6)

    def never(*arguments: object, **named: object) -> None:
        pytest.fail("something was generated")

    for module, name in ((decode, "greedy"), (together, "greedy_together")):
        monkeypatch.setattr(module, name, never)
    monkeypatch.setattr("kvfw.runner.execute.answers.greedy_together", never)
    found = answered(tools, filled, rows, question, follow)
    assert [answer.response.tokens for answer in found] == [follow] * len(rows)
    assert {answer.response.text for answer in found} == {tools.loaded.tokenizer.decode(list(follow))}
    # Likelihoods are those of this text over each row's own cache: of token 1 too where a question comes before it.
    likelihoods = [answer.engine.nll(follow) for answer in found]
    assert {len(nll) for nll in likelihoods} == {4 if question else 3}
    assert len(set(likelihoods)) == len(rows)


@pytest.mark.parametrize("question", [(), QUESTION], ids=["aware", "agnostic"])
def test_distributions_are_compared_with_the_full_caches_in_the_forward_of_its_likelihoods(
    tools: Tools, filled: Prefill, question: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = Turn(QUESTION, follow_ids=(9, 8, 7, 6))
    asked = Question(0, turn, tuple(question), timed=False, sha256="0" * 64)
    (whole,), _ = compressed(filled, [Row(RowKey("full", "ratio=1"), None)])
    (baseline,) = answers(filled, [whole], asked, tools)
    ready, _ = compressed(filled, [row("streaming", 8)])
    (answer,) = answers(filled, ready, asked, tools, baseline)
    nll, full = answer.engine.nll(turn.follow_ids), baseline.engine.nll(turn.follow_ids)
    monkeypatch.setattr(decode, "teacher_forced", lambda *_, **__: pytest.fail("another forward"))
    shift = answer.engine.shift(turn.follow_ids)
    assert len(shift.kl) == len(shift.same) == len(nll) == len(full)
    assert all(kl > 0 for kl in shift.kl)
    assert set(baseline.engine.shift(turn.follow_ids).kl) == {0.0}
    monkeypatch.undo()
    # By hand, from the logits over both caches.
    p, q = (
        decode.teacher_forced(
            tools.loaded.model, filled.cache_of(each.states), turn.follow_ids, before=question, keep_logits=True
        ).logits
        for each in (whole, ready[0])
    )
    assert p is not None
    assert q is not None
    expected = torch.nn.functional.kl_div(q.log_softmax(-1), p.log_softmax(-1), reduction="none", log_target=True)
    assert shift.kl == pytest.approx(expected.sum(-1).tolist(), rel=1e-3, abs=1e-6)


def test_an_unsure_row_is_decoded_alone(tools: Tools, filled: Prefill, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(text) for text in COMPOSITIONS]
    expected = [answer.response for answer in answered(tools, filled, rows)]
    lone = list[int]()
    original = decode.greedy

    def counted(*arguments: Any) -> tuple[int, ...]:
        lone.append(1)
        return original(*arguments)

    monkeypatch.setattr(decode, "greedy", counted)
    monkeypatch.setattr(together, "SURE_GAP", {tools.loaded.model.dtype: 1e6})
    assert [answer.response for answer in answered(tools, filled, rows)] == expected
    assert len(lone) == len(rows)


def test_one_row_at_a_time_where_a_batch_cannot_be_trusted(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_at_once(tools) == BATCH_ROWS
    monkeypatch.setattr(together, "SURE_GAP", {})
    assert rows_at_once(tools) == 1


class Third(Part):
    """Fails in one layer."""

    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Any) -> Any:
        if obs.layer == 1:
            raise ValueError("layer one\nboom")
        return obs.state.positions


def test_a_row_that_fails_takes_no_other_with_it(tools: Tools, filled: Prefill) -> None:
    registry = register((*default_registry().specs.values(), PartSpec(Kind.SCORER, "third", f"{__name__}:Third", "x")))
    by = compressor(parse("third", registry), amount(ratio=4), sinks=4, recent=8)
    broken = Row(RowKey("third", "ratio=4"), by)
    rows = [row(COMPOSITIONS[0]), broken, row(COMPOSITIONS[1])]
    ready, failed = compressed(filled, rows)
    assert [each.row for each in ready] == [rows[0], rows[2]]
    ((which, error),) = failed
    assert which is broken
    assert "scorer Third in layer 1 failed: ValueError: layer one boom (test_answers.py, line" in str(error)
    assert compressed(filled, [broken])[0] == ()
