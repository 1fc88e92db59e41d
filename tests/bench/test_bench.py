"""The benchmark's arithmetic, and every measurement once on a tiny model."""

import json
import mmap
import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from kvfw.bench import compression, startup
from kvfw.bench import refitting as refit
from kvfw.bench import run as bench
from kvfw.bench.clock import ratios, seconds_of
from kvfw.bench.compression import Cost, costs
from kvfw.bench.decoding import Steps, speeds, steps
from kvfw.bench.figures import figures
from kvfw.bench.findings import Findings
from kvfw.bench.held import CODED, Held, held
from kvfw.bench.limits import SIXTEEN, Bar
from kvfw.bench.peak import Peak, peak_of
from kvfw.bench.resident import Resident
from kvfw.bench.scaling import growths
from kvfw.bench.startup import Starting
from kvfw.bench.tables import as_json, tables
from kvfw.bench.whole_evaluation import Whole
from kvfw.cli import main
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import Compressor, compressor
from kvfw.core.compress.scores import checked_scores
from kvfw.core.ops.columns import attention_columns, column_sums
from kvfw.core.registry.registry import default_registry
from kvfw.core.state.observation import Columns, Needs
from kvfw.errors import RunError
from kvfw.model.load.load import LoadedModel
from kvfw.model.load.random_llama import random_llama
from kvfw.model.run.prefill import prefill
from kvfw.report.terminal import rich_table

CPU = torch.device("cpu")


def silent(_: str) -> None:
    """Nobody is told."""


def bound(*texts: str) -> list[Compressor]:
    return [compressor(parse(text), amount(ratio=4), sinks=4, recent=8) for text in texts]


def test_a_ratio_is_taken_within_a_round() -> None:
    # A slow round doubles both; the ratio stays.
    assert ratios([1.0, 2.0, 1.0], [4.0, 8.0, 4.0]) == [0.25] * 3


def test_the_clock_waits_for_the_work() -> None:
    calls = list[int]()
    assert seconds_of(lambda: calls.append(sum(range(200_000))), CPU) > 1e-4
    assert len(calls) == 1


@pytest.mark.parametrize(("measured", "met"), [(0.2, True), (0.25, True), (0.3, False), (None, None)])
def test_a_promise_is_kept_broken_or_unknown(measured: float | None, met: bool | None) -> None:
    assert Bar("x", 0.25, measured).met is met


def test_growth_is_the_slope_where_fixed_costs_no_longer_matter() -> None:
    def at(tokens: int) -> Cost:
        return Cost("a", tokens, tokens * 1e-3, 0.0, tokens**2 * 1e-6, 0.0, 0.0, 0.0)

    found = {g.compose: g.exponent for g in growths([at(n) for n in (1000, 2000, 4000, 8000)])}
    assert found["a"] == pytest.approx(2.0)
    assert found["prefill"] == pytest.approx(1.0)
    assert growths([at(1000)])[0].exponent is None


def test_every_composition_pays_for_its_own_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def counted(scorer: Any, obs: Any) -> torch.Tensor:
        asked.append(obs.layer)
        return checked_scores(scorer, obs)

    monkeypatch.setattr("kvfw.core.compress.scores.checked_scores", counted)
    model = random_llama(layers=2, heads=4, kv_heads=2, head_dim=8)
    found = costs(model, None, list(range(1, 90)), bound("snapkv", "snapkv:0.5+streaming:0.5", "h2o"), 2, silent)
    # Three rounds, of which the first is not counted; in each, two layers: 1 + 2 + 1 scorers.
    assert len(asked) == 3 * 2 * (1 + 2 + 1)
    assert [cost.compose for cost in found] == ["snapkv", "snapkv:0.5+streaming:0.5", "h2o"]
    assert all(cost.tokens == 89 and cost.prefill_s > 0 and cost.compress_s > 0 for cost in found)
    assert found[0].observe_s == 0.0
    assert found[2].observe_s > 0.0


def test_costs_are_medians_of_what_the_clock_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # Per round: plain prefill, observing prefill, compression. The first round is a warm-up.
    told = iter([9.0, 9.0, 9.0, 1.0, 1.0, 0.1, 2.0, 2.0, 0.4, 4.0, 4.0, 0.4])

    def clock(work: Any, device: torch.device) -> float:
        work()
        return next(told)

    monkeypatch.setattr(compression, "seconds_of", clock)
    model = random_llama(layers=1, heads=2, kv_heads=1, head_dim=8)
    (found,) = costs(model, None, list(range(1, 60)), bound("snapkv"), 3, silent)
    assert (found.prefill_s, found.compress_s, found.observe_s) == (2.0, 0.4, 0.0)
    assert found.fraction == pytest.approx(0.1)


def test_every_step_is_announced_before_its_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    log = list[str]()

    def clock(work: Any, device: torch.device) -> float:
        log.append("clock")
        work()
        log.append("stop")
        return 1.0

    monkeypatch.setattr(compression, "seconds_of", clock)
    model = random_llama(layers=1, heads=2, kv_heads=1, head_dim=8)
    costs(model, None, list(range(1, 60)), bound("snapkv", "h2o"), 1, log.append)
    steps = ["prefill", "prefill that observes", "what h2o observes", "snapkv", "h2o"]
    told = [f"{turn}: {step}" for turn in ("warm-up", "round 1 of 1") for step in steps]
    assert log == [entry for step in told for entry in (step, "clock", "stop")]


def test_every_measurement_says_its_rounds(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "peak_of", lambda *_: Peak(1, 1, 1, 1))
    monkeypatch.setattr(startup, "run_python", lambda *_: "0.5")
    monkeypatch.setattr("kvfw.bench.whole_evaluation.run_prompt", lambda *_: ())
    encoder = SimpleNamespace(similarity=lambda *_: 1.0)
    monkeypatch.setattr("kvfw.bench.whole_evaluation.SentenceEncoder", lambda: encoder)
    arguments = ["--model", str(tiny_folder), "--contexts", "200", "--scaling", "200", "--repeats", "2", "--json"]
    assert main.run(["bench", *arguments]) in (0, 1)
    printed = capsys.readouterr()
    json.loads(printed.out)  # what is told stays out of the way
    said = printed.err.splitlines()
    hybrid = "snapkv:0.8+ewmeans_pre:0.2"
    for line in (
        "compression at 200 tokens",
        "compression at 200 tokens, warm-up: prefill",
        f"compression at 200 tokens, round 2 of 2: {hybrid}",
        "a whole evaluation of 16 compositions at 200 tokens, round 1 of 1: evaluation",
        "decode speed, round 2 of 2: 200 slots",
        "memory, round 2 of 2: full, 256 tokens at a time",
        "a refit, round 2 of 2: kvzip@global|refit",
        "bytes held, snapkv@adakv",
        "starting and loading, round 1 of 2: kvfw list",
        "starting and loading, round 2 of 2: loading",
        f"scaling on a random model, 200 tokens, round 1 of 1: {hybrid}",
    ):
        assert f"measuring {line}" in said


def test_what_is_observed_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # Per round: plain prefill, observing prefill, column sums, compression. The first round is a warm-up.
    told = iter([9.0, 9.0, 9.0, 9.0, 2.0, 7.0, 0.2, 0.1, 2.0, 1.0, 0.4, 0.1])

    def clock(work: Any, device: torch.device) -> float:
        work()
        return next(told)

    asked = list[tuple[int, tuple[int, ...]]]()

    def counted(queries: torch.Tensor, *args: Any, **options: Any) -> dict[int, torch.Tensor]:
        asked.append((queries.shape[2], args[-1]))
        return column_sums(queries, *args, **options)

    monkeypatch.setattr(compression, "seconds_of", clock)
    monkeypatch.setattr(compression, "column_sums", counted)
    model = random_llama(layers=2, heads=2, kv_heads=1, head_dim=8)
    (found,) = costs(model, None, list(range(1, 60)), bound("h2o"), 2, silent)
    assert (found.prefill_s, found.compress_s) == (2.0, 0.1)
    assert found.observe_s == pytest.approx(0.3)
    assert (found.lowest, found.highest) == pytest.approx((0.15, 0.25))
    # Sums over all queries, in three rounds of two layers.
    assert asked == [(59, (0,))] * 6


def test_sums_that_are_timed_are_those_of_the_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    def counted(*args: Any, **options: Any) -> dict[Columns, torch.Tensor]:
        calls.append(1)
        return attention_columns(*args, **options)

    monkeypatch.setattr("kvfw.model.session.capture.attention_columns", counted)
    model = random_llama(layers=3, heads=4, kv_heads=2, head_dim=8)
    filled = prefill(model, list(range(1, 90)), Needs(queries=89, column_sums=frozenset({0, 7})), sinks=4, recent=8)
    # Once a layer, so that timing them once is timing all.
    assert len(calls) == 3
    for obs, sums in zip(
        filled.observations.values(), compression._observe(filled, (frozenset({7, 0}), frozenset())), strict=True
    ):
        assert sums.keys() == {0, 7}
        assert all(torch.equal(obs.received(n), sums[n]) for n in sums)


def test_memory_is_measured_with_what_is_freed_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict[str, str]()

    def run(*args: Any, env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
        given.update(env)
        answer = json.dumps({"peak_bytes": 1, "kv_bytes": 2, "expected_kv_bytes": 3, "layer_bytes": 4})
        return subprocess.CompletedProcess(args, 0, answer, "")

    monkeypatch.setenv("KVFW_CACHE", "somewhere")
    monkeypatch.setattr(subprocess, "run", run)
    assert peak_of("a", "cpu", [1], None, 8, None) == Peak(1, 2, 3, 4)
    assert int(given["MALLOC_MMAP_THRESHOLD_"]) <= 2**20
    assert given["KVFW_CACHE"] == "somewhere"


def test_decode_speed_by_slots() -> None:
    model = random_llama(layers=2, heads=4, kv_heads=2, head_dim=8)
    found = speeds(model, list(range(1, 120)), (96, 104), 1, silent)
    assert [speed.slots for speed in found] == [119, 96, 104]
    # Two layers, two KV heads of size 8, keys and values, float32.
    assert [speed.kv_bytes for speed in found] == [n * 2 * 2 * 8 * 2 * 4 for n in (119, 96, 104)]
    assert found[0].relative == 1.0
    assert all(speed.tokens_per_s > 0 for speed in found)


def test_a_decode_step_beside_other_caches_of_as_many_slots() -> None:
    found = steps(random_llama(layers=2, heads=4, kv_heads=2, head_dim=8), list(range(1, 120)), 1, silent)
    assert found is not None
    assert found.uneven > 0
    assert found.own > 0
    assert steps(random_llama(layers=2, heads=4, kv_heads=1, head_dim=8), list(range(1, 120)), 1, silent) is None


def test_promises_of_decode_steps_are_about_the_promised_length() -> None:
    measured = replace(findings(), steps=Steps(uneven=1.1, own=0.9))
    assert [bar.measured for bar in measured.bars if bar.what.startswith("a decode step")] == [1.1, 0.9]
    shorter = replace(measured, costs=(cost(1024, 0.03),))
    assert [bar.measured for bar in shorter.bars if bar.what.startswith("a decode step")] == [None, None]


def test_a_refit_is_timed_beside_compressing_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Per round: prefill, compression without and with the refit. The first round is a warm-up.
    told = iter([9.0, 9.0, 9.0, 2.0, 0.5, 1.5, 4.0, 0.5, 1.5])

    def clock(work: Any, device: torch.device) -> float:
        work()
        return next(told)

    monkeypatch.setattr(refit, "seconds_of", clock)
    monkeypatch.setattr(refit, "REFIT", "snapkv|refit(queries=prompt)")
    model = random_llama(layers=2, heads=4, kv_heads=2, head_dim=8)
    found = refit.refitting(model, None, list(range(1, 120)), 2, silent)
    assert found == pytest.approx((0.5 + 0.25) / 2)


def test_bytes_held_are_those_of_the_slots_of_uneven_heads_and_fewer_where_coded() -> None:
    found = held(
        random_llama(layers=2, heads=6, kv_heads=3, head_dim=32), None, [1 + i % 90 for i in range(250)], silent
    )
    *uneven, coded = found
    assert [each.prompt for each in uneven] == [pytest.approx(1.0, abs=0.02)] * 3
    assert all(1.0 <= each.decoded < 1.2 for each in uneven)  # few slots: room for new ones weighs much
    # 4 bits and, per 32 numbers, 4 bytes, of 32 bits each.
    assert coded.bits == 32
    assert (4 + 1) / 32 <= coded.prompt < 0.3  # the remainder of a group stays as it is
    measured = replace(findings(), refit=0.4, held=(Held("a", 32, 1.01, 1.015), Held(CODED, 32, 0.156, 0.2)))
    figures_of = {bar.what: bar.measured for bar in measured.bars}
    assert figures_of["a refit at ratio 8 with 1024 queries per head, of the prefill"] == 0.4
    assert figures_of["the same, heads of unequal size, after the prompt and 64 tokens later"] == 1.015
    assert figures_of["kivi(bits=4) without exact tokens, of float16 slots"] == pytest.approx(0.312)


def test_peak_memory_counts_what_was_let_go_again() -> None:
    size = 64 * 2**20
    # A mapping of its own: a tensor may get memory that the process let go of and still holds.
    with Resident(CPU) as held, mmap.mmap(-1, size) as block:
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1
    assert 0.9 * size <= held.peak_bytes <= 1.5 * size
    with Resident(CPU) as nothing:
        pass
    assert nothing.peak_bytes < size / 8


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own(tiny_folder: Path) -> None:
    ids = list(range(1, 400))
    found = peak_of(str(tiny_folder), "cpu", ids, "snapkv", 8, None)
    assert found.kv_bytes == found.expected_kv_bytes
    per_slot = 2 * 2 * 8 * 4
    assert found.layer_bytes == len(ids) * per_slot
    assert found.expected_kv_bytes == (88 + (len(ids) - 88) // 8) * per_slot * 2
    plain = peak_of(str(tiny_folder), "cpu", ids, None, 8, 64)
    assert plain.kv_bytes == plain.expected_kv_bytes == len(ids) * per_slot * 2
    with pytest.raises(RunError, match="measuring memory failed"):
        peak_of(str(tiny_folder / "absent"), "cpu", ids, None, 8, None)


@pytest.mark.real
def test_memory_comes_out_the_same_each_time(smollm: LoadedModel) -> None:
    """It follows what is alive, not what the C library likes to keep, which differs from run to run."""
    ids = torch.randint(0, 40000, (2048,), generator=torch.Generator().manual_seed(0)).tolist()
    found = [peak_of("smollm2-135m", "cpu", ids, None, 8, None).peak_bytes for _ in range(4)]
    assert max(found) < 1.05 * min(found)


def cost(tokens: int, fraction: float) -> Cost:
    return Cost("snapkv", tokens, 2.0, 0.0, 2.0 * fraction, fraction, fraction / 2, fraction * 2)


def findings() -> Findings:
    model = random_llama(layers=1, heads=2, kv_heads=1, head_dim=8)
    return Findings(
        hardware={"cores": 2},
        complete=True,
        costs=(cost(1024, 0.03), cost(3072, 0.02)),
        speeds=speeds(model, list(range(1, 120)), (96,), 1, silent),
        whole=Whole(16, 3072, 16, 20.0, 5.0, 0.3),
        starting=Starting(help_s=0.1, list_s=0.2, load_s=4.0),
        scaling=(cost(1024, 0.03), cost(3072, 0.02)),
    )


def lines(found: Findings) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=200)
    for grid in tables(found):
        console.print(rich_table(grid, 200))
    return [" ".join(line.replace("│", " ").split()) for line in out.getvalue().splitlines()]


def test_findings_are_written_for_people_and_machines() -> None:
    found = findings()
    saved = json.loads(as_json(found))
    met = {bar["what"]: bar["met"] for bar in saved["bars"]}
    assert met["snapkv, of the prefill at 3072 tokens"] is True
    assert met["loading the model again"] is False
    assert met["extra memory of h2o scoring"] is None
    assert saved["complete"] is True
    assert saved["costs"][1]["fraction"] == 0.02
    assert saved["growths"][0]["compose"] == "prefill"
    told = lines(found)
    assert "snapkv, of the prefill at 3072 tokens 0.030 0.020 +33% met" in told
    assert "loading the model again 3 s 4 s -33% NOT met" in told
    assert "extra memory of h2o scoring 64 MB – not measured" in told
    # A title wider than its table is wrapped.
    assert "Compression at 3072 tokens, beside a prefill of 2.000 s" in " ".join(told)
    assert "snapkv 0.000 0.040 2.0% 1.0%–4.0%" in told
    assert [drawing.name for drawing in figures(found)] == ["compression", "scaling", "decoding"]
    assert all(drawing.save("png").startswith(b"\x89PNG") for drawing in figures(found))


def test_a_list_in_a_composition_is_no_markup() -> None:
    found = replace(findings(), costs=(replace(cost(3072, 0.02), compose="lists(words=[cwe,vt])"),))
    assert any(line.startswith("lists(words=[cwe,vt]) ") for line in lines(found))


def test_memory_promises_are_ratios_of_what_processes_measured() -> None:
    def peak(bytes_: int, held: int) -> Peak:
        return Peak(peak_bytes=bytes_, kv_bytes=held, expected_kv_bytes=held, layer_bytes=10)

    peaks = {
        "full": peak(200, 100),
        "full, 2048 tokens at a time": peak(2**20, 100),
        "snapkv": peak(110, 20),
        "h2o": peak(110 + 2**20, 20),
        "kvzip@global": peak(3 * 2**20, 20),
    }
    found = {bar.what: bar.measured for bar in replace(findings(), peaks=peaks).bars}
    assert found["bytes held after compression, of slots x bytes per slot"] == 1.0
    # 70 bytes had to be freed: the full cache less the kept one and one layer.
    assert found["peak of an attached prefill, of the plain one's less what must have been freed"] == 110 / 130
    assert found["extra memory of h2o scoring"] == 1.0
    assert found["extra memory of a probe, beside a forward of as many tokens"] == 2.0
    shorter = replace(findings(), peaks=peaks, costs=(cost(1024, 0.03),))
    assert [bar.what for bar in shorter.bars if bar.measured is not None] == [
        "kvfw --help",
        "kvfw list",
        "loading the model again",
    ]


def test_nothing_measured_is_lost_when_a_benchmark_is_stopped(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> Whole:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvfw.bench.run.costs", lambda *_: (cost(2000, 0.02),))
    monkeypatch.setattr("kvfw.bench.run.whole", stopped)
    # The tiny model has no positions for the length that the promises are about.
    arguments = ["bench", "--model", str(tiny_folder), "--contexts", "1000,2000", "--out", str(tmp_path / "bench")]
    assert main.run(arguments) == 1
    saved = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert [cost["fraction"] for cost in saved["costs"]] == [0.02, 0.02]
    assert [bar["met"] for bar in saved["bars"]] == [None] * len(saved["bars"])
    assert saved["complete"] is False
    printed = capsys.readouterr()
    assert "2.0%" in printed.out
    assert "a whole evaluation of 16 compositions at 2000 tokens" in printed.err
    assert printed.err.endswith("interrupted\n")
    # Nor by the next one.
    assert main.run(arguments) == 2
    assert "holds an earlier benchmark" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--repeats", "0"],
        ["--contexts", "x"],
        ["--contexts", "88"],
        ["--scaling=-1"],
        ["--scaling", "1024,88"],
        ["--compose", "snapkw"],
    ],
)
def test_a_wrong_request_is_said_before_anything_is_timed(
    arguments: list[str], tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("something was timed")

    monkeypatch.setattr(bench, "costs", never)
    assert main.run(["bench", "--model", str(tiny_folder), *arguments]) == 2


def test_lengths_are_measured_from_short_to_long_once_each(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def measured(_: object, tokens: int, *__: object) -> tuple[Cost, ...]:
        asked.append(tokens)
        return (cost(tokens, 0.02),)

    for part, found in (
        ("costs", ()),
        ("whole", None),
        ("speeds", ()),
        ("refitting", None),
        ("held", ()),
        ("_peaks", {}),
        ("starting", None),
    ):
        monkeypatch.setattr(bench, part, lambda *_, found=found, **__: found)
    monkeypatch.setattr(bench, "scaling", measured)
    request = bench.Request(model=str(tiny_folder), contexts=(500,), scaling=(800, 200, 400, 200))
    assert [each.complete for each in bench.run(request, default_registry(), lambda _: None)][-1]
    assert asked == [200, 400, 800]


def test_the_sixteen_are_sixteen_compositions() -> None:
    assert len({str(parse(text)) for text in SIXTEEN}) == 16
