"""Every metric on made-up evidence, with values worked out by hand."""

import math
from dataclasses import dataclass, field, replace

import pytest
import torch

from kvfw.core.contracts.metric import Evidence, Measured, Metric, Missing, Response, Shift
from kvfw.core.contracts.records import FULL, TrialKey, TrialRecord, vector_of, vector_text
from kvfw.core.contracts.task import Sample, Turn
from kvfw.core.state.state import KVState
from kvfw.metrics.delta_nll import DeltaNLL
from kvfw.metrics.embed_cos import EmbedCosine
from kvfw.metrics.hidden_cos import CentredHiddenCosine, HiddenCosine, cosine
from kvfw.metrics.kv_mb import KVMegabytes, OverheadMegabytes
from kvfw.metrics.ref_ppl import RefPPL
from kvfw.metrics.self_ppl import SelfPPL
from kvfw.metrics.shift import KL, Agreement
from kvfw.metrics.span_kept import SpanKept
from kvfw.metrics.tok_s import TokensPerSecond

OWN, REFERENCE = (5, 6, 7), (5, 8, 9)


@dataclass(frozen=True)
class Fake:
    """An engine with fixed answers by token sequence."""

    nlls: dict[tuple[int, ...], tuple[float, ...]] = field(default_factory=dict)
    states: dict[tuple[int, ...], tuple[float, ...]] = field(default_factory=dict)

    def nll(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        return self.nlls.get(tokens, ())

    def shift(self, tokens: tuple[int, ...]) -> Shift:
        return Shift((0.5, 1.5), (True, False)) if tokens == REFERENCE and self.nlls else Shift()

    def hidden(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        return self.states.get(tokens, ())

    def similarity(self, text: str, other: str) -> float | Missing:
        return 0.5 if (text, other) == ("own", "reference") else Missing("unexpected texts")

    def tokens_per_second(self) -> float:
        return 12.5


def state(positions: list[list[float]], mass: list[list[float]]) -> KVState:
    p, m = torch.tensor(positions)[None], torch.tensor(mass, dtype=torch.float32)[None]
    kv = torch.zeros(*p.shape, 2)
    return KVState(kv, kv, p, m, torch.zeros_like(m))


def evidence(
    *,
    engine: Fake | None = None,
    reference_engine: Fake | None = None,
    spans: tuple[range, ...] = (range(10, 14),),
    states: dict[int, KVState] | None = None,
    timed: bool = True,
    positions_kept: bool = True,
    text: str = "own",
) -> Evidence:
    turn = Turn((18, 19), references=("A1",))
    return Evidence(
        sample=Sample("a", "g", {}, tuple(range(18)), (turn,), spans),
        turn=turn,
        response=Response(OWN, text),
        reference=Response(REFERENCE, "reference"),
        states=states if states is not None else {},
        positions_kept=positions_kept,
        kv_bytes=3 * 2**20,
        overhead_bytes=2**19,
        timed=timed,
        engine=engine or Fake(),
        reference_engine=reference_engine or Fake(),
    )


def test_perplexities_look_at_the_right_text_over_the_compressed_cache() -> None:
    own = Fake(nlls={REFERENCE: (1.0, 2.0), OWN: (0.5, 0.5)})
    other = Fake(nlls={REFERENCE: (9.0,), OWN: (9.0,)})
    found = evidence(engine=own, reference_engine=other)
    assert RefPPL().measure(found) == pytest.approx(math.exp(1.5))
    assert SelfPPL().measure(found) == pytest.approx(math.exp(0.5))


def test_distributions_are_compared_along_the_full_caches_response() -> None:
    own, full = Fake(nlls={REFERENCE: (1.0, 2.0), OWN: (0.5,)}), Fake(nlls={REFERENCE: (1.0, 0.5)})
    found = evidence(engine=own, reference_engine=full)
    assert DeltaNLL().measure(found) == pytest.approx(0.75)
    assert KL().measure(found) == Measured(1.0, (0.5, 1.5))
    assert Agreement().measure(found) == Measured(0.5, (1.0, 0.0))


@pytest.mark.parametrize("metric", [RefPPL(), SelfPPL(), HiddenCosine(), KL(), Agreement(), DeltaNLL()])
def test_a_response_of_one_token_gives_a_reason(metric: Metric) -> None:
    value = metric.measure(evidence())
    assert isinstance(value, Missing)
    assert "one token" in value.reason


def test_bytes_are_in_units_of_two_to_the_twentieth() -> None:
    assert KVMegabytes().measure(evidence()) == 3.0
    assert OverheadMegabytes().measure(evidence()) == 0.5


def test_speed_is_measured_in_timed_trials_only() -> None:
    assert TokensPerSecond().measure(evidence(timed=True)) == 12.5
    assert isinstance(TokensPerSecond().measure(evidence(timed=False)), Missing)


def test_span_kept_counts_exact_tokens_over_layers_and_heads() -> None:
    # The span is 10...13. Head 0 keeps two of four exactly; head 1 one (the other slot there is merged).
    first = state([[0.0, 10.0, 11.0, 19.0], [0.0, 9.0, 12.0, 12.5]], [[1, 1, 1, 1], [1, 1, 1, 3]])
    second = state([[0.0, 1.0, 2.0, 14.0]] * 2, [[1, 1, 1, 1]] * 2)
    value = SpanKept().measure(evidence(states={0: first, 3: second}))
    assert value == pytest.approx((2 / 4 + 1 / 4) / 2 / 2)
    assert SpanKept().measure(evidence(states={})) == Missing("no compressible layer")


def test_span_kept_counts_every_span_and_no_token_twice() -> None:
    kept = state([[0.0, 1.0, 5.0, 6.0]], [[1, 1, 1, 1]])
    spans = (range(2), range(5, 8), range(6, 9))
    assert SpanKept().measure(evidence(states={0: kept}, spans=spans)) == pytest.approx(4 / 6)
    assert SpanKept().measure(evidence(states={0: kept}, spans=())) == Missing("the sample has no spans")


def test_span_kept_is_not_guessed_where_positions_were_changed() -> None:
    kept = state([[10.0, 11.0, 12.0, 13.0]], [[1, 1, 1, 1]])
    value = SpanKept().measure(evidence(states={0: kept}, positions_kept=False))
    assert isinstance(value, Missing)
    assert "re-rotated" in value.reason


def test_embedding_cosine_compares_the_two_responses_and_explains_an_empty_one() -> None:
    assert EmbedCosine().measure(evidence()) == 0.5
    empty = EmbedCosine().measure(evidence(text=" "))
    assert isinstance(empty, Missing)
    assert "empty" in empty.reason


@pytest.mark.parametrize("metric", [EmbedCosine(), SelfPPL()])
def test_a_text_that_was_fed_is_no_response_of_the_models(metric: Metric) -> None:
    found = evidence(engine=Fake({OWN: (0.5,)}))
    assert not isinstance(metric.measure(found), Missing)
    fed = replace(found, turn=replace(found.turn, follow_ids=OWN))
    assert metric.measure(fed) == Missing("the response was fed to the model, which wrote none")


def test_hidden_cosine_compares_each_response_over_its_own_cache() -> None:
    found = evidence(
        engine=Fake(states={OWN: (1.0, 0.0)}),
        reference_engine=Fake(states={REFERENCE: (1.0, 1.0)}),
    )
    value = HiddenCosine().measure(found)
    assert isinstance(value, Measured)
    assert value.value == pytest.approx(math.sqrt(0.5))
    assert value.vector == (1.0, 0.0)


def record(compose: str, depth: float, vector: tuple[float, ...] | None) -> TrialRecord:
    return TrialRecord(
        key=TrialKey(compose=compose, amount="ratio=1", sample=f"100-{depth:g}"),
        group="100",
        ratio=1.0,
        prompt_sha256="0" * 64,
        response="r",
        metrics={},
        vectors={} if vector is None else {"hidden_cos": vector_text(vector)},
    )


def test_the_centred_cosine_subtracts_the_mean_of_the_full_cache_responses() -> None:
    records = [
        record(FULL, 10.0, (11.0, 0.0)),
        record(FULL, 90.0, (9.0, 0.0)),
        record("snapkv", 10.0, (12.0, 0.0)),  # centre (10, 0): same direction as its reference
        record("snapkv", 90.0, (12.0, 0.0)),  # and the opposite one here
        record("h2o", 10.0, None),
    ]
    values = CentredHiddenCosine().derive(records)
    assert [values[r.key] for r in records[:4]] == [1.0, 1.0, 1.0, -1.0]
    assert isinstance(values[records[4].key], Missing)
    # Without the subtraction all four would be 1.
    assert cosine((12.0, 0.0), (9.0, 0.0)) == 1.0


def test_the_centred_cosine_needs_two_references() -> None:
    records = [record(FULL, 10.0, (1.0, 0.0)), record("snapkv", 10.0, (1.0, 0.0))]
    assert all(isinstance(value, Missing) for value in CentredHiddenCosine().derive(records).values())


def test_cosine_of_zero_vectors_is_defined() -> None:
    assert cosine((0.0, 0.0), (0.0, 0.0)) == 1.0
    assert cosine((0.0, 0.0), (1.0, 0.0)) == 0.0


def test_stored_vectors_come_back_as_float32() -> None:
    vector = (0.1, -3.5, 1e-30)
    assert vector_of(vector_text(vector)) == tuple(torch.tensor(vector).tolist())
    with pytest.raises(ValueError, match="not a stored vector"):
        vector_of("abc")
