"""kvzap, duo, expected and qfilters: what they learn from a text, against loops, and how they use it."""

from pathlib import Path

import pytest
import torch

from helpers.observations import ROPE, random_row
from kvfw.core.contracts.calibration import CalibratedPart, Piece, to_bytes
from kvfw.core.contracts.parts import LayerView
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Columns, Needs, Observation
from kvfw.core.state.rope import unrotate
from kvfw.core.state.state import exact_state
from kvfw.methods.allocators.duo import Duo
from kvfw.methods.scorers.expected import ExpectedAttention
from kvfw.methods.scorers.kvzap import LEAST, KVzap, features
from kvfw.methods.scorers.qfilters import QFilters
from kvfw.verify.instruments.observed import observe


class NormOfTheValue(Part):
    """A teacher whose logarithm is linear in the features."""

    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation) -> torch.Tensor:
        return obs.state.values.float().square().sum(-1)


def texts(part: CalibratedPart, count: int = 5) -> list[Piece]:
    rows = [random_row(50, 30 + seed) for seed in range(count)]
    return [{0: observe([row], part.calibration_needs)} for row in rows]


def filed(part: CalibratedPart, tensors: dict[str, torch.Tensor], folder: Path) -> CalibratedPart:
    path = folder / "learned.safetensors"
    path.write_bytes(to_bytes(type(part).__name__, {}, {}, "", tensors))
    return type(part).model_validate({**dict(part), "file": str(path)})


@pytest.mark.parametrize("part", [ExpectedAttention(sinks=2), QFilters()], ids=["expected", "qfilters"])
def test_a_file_made_from_the_prompt_itself_scores_as_the_prompt_does(part: CalibratedPart, tmp_path: Path) -> None:
    obs = observe([random_row(40, 3)], part.calibration_needs)
    with_file = filed(part, part.calibrate([{0: obs}]), tmp_path)
    assert isinstance(part, ExpectedAttention | QFilters)
    assert isinstance(with_file, ExpectedAttention | QFilters)
    expected = part.score(obs.narrowed(part.needs))
    torch.testing.assert_close(with_file.score(obs.narrowed(with_file.needs)), expected, rtol=1e-4, atol=1e-5)


def test_moments_over_several_texts_are_those_of_all_their_queries() -> None:
    part = ExpectedAttention(sinks=2)
    learned = part.calibrate(texts(part))
    rows = [random_row(50, 30 + seed) for seed in range(5)]
    turned = [unrotate(r.queries[None], torch.arange(50.0).expand(1, 1, -1), ROPE)[0, :, 2:] for r in rows]
    every = torch.cat(turned, 1).double()
    torch.testing.assert_close(learned["0.mean"].double(), every.mean(1), rtol=1e-4, atol=1e-5)
    for head, queries in enumerate(every):
        cov = torch.cov(queries.T, correction=0)
        torch.testing.assert_close(learned["0.covariance"][head].double(), cov, rtol=1e-4, atol=1e-4)


def test_kvzap_finds_a_teacher_that_is_linear_in_its_features(tmp_path: Path) -> None:
    part = KVzap(teacher=NormOfTheValue(), ridge=0)
    pieces = [{0: observe([random_row(50, 30 + seed)], Needs())} for seed in range(5)]
    learned = part.calibrate(pieces)
    assert learned["r2_fit"] > 0.999
    assert learned["r2_held_out"] > 0.999
    with_file, obs = filed(part, learned, tmp_path), observe([random_row(30, 9)], Needs())
    assert isinstance(with_file, KVzap)
    torch.testing.assert_close(with_file.score(obs), NormOfTheValue().score(obs) + LEAST, rtol=1e-2, atol=1e-3)


def test_kvzap_by_hand(tmp_path: Path) -> None:
    key = torch.tensor([[3.0, 4], [0, 1]])[None, None]
    value, at = torch.tensor([[2.0], [1]])[None, None], torch.arange(2.0)[None]
    state = exact_state(key, value, at, at >= 0)
    obs = Observation(state=state, protected=torch.zeros_like(state.valid), scale=1.0, layer=0)
    # Key, value, log of the key's norm, log of the value's norm, constant.
    weights = torch.tensor([[0.0, 0.25, 0, 1, 2, -1]])
    part = filed(KVzap(teacher=NormOfTheValue()), {"0.map": weights}, tmp_path)
    assert isinstance(part, KVzap)
    # exp(0.25 * 4 + log 5 + 2 log 2 - 1) = 20; exp(0.25 - 1).
    torch.testing.assert_close(part.score(obs).flatten(), torch.tensor([20.0, 0.4723666]))
    assert features(obs).shape == (1, 1, 2, 5)


def test_duo_gives_whole_heads_in_the_order_of_how_far_they_look(tmp_path: Path) -> None:
    part = filed(Duo(), {"0.far": torch.tensor([0.1, 0.4]), "2.far": torch.tensor([0.3, 0.1])}, tmp_path)
    assert isinstance(part, Duo)
    views = [LayerView(0, 2, torch.tensor([10, 6])), LayerView(2, 2, torch.tensor([10, 6]))]
    given = part.allocate(torch.tensor([24, 10]), views)
    assert [each.tolist() for each in given] == [[[2, 10], [0, 6]], [[10, 2], [4, 0]]]


def test_duo_measures_attention_from_afar_without_the_sinks() -> None:
    part, row = Duo(local=5, sinks=2), random_row(20, 4)
    obs = observe([row, random_row(12, 5)], Duo(local=5).calibration_needs)
    at, group = torch.arange(20), 2
    logits = row.queries.double() @ row.keys.double().repeat_interleave(group, 0).mT * obs.scale
    attention = logits.masked_fill(at[:, None] < at, -torch.inf).softmax(-1)
    far = (at[:, None] - at >= 5) & (at >= 2)
    expected = (attention * far).sum((1, 2)).view(2, group).mean(1) / 20
    torch.testing.assert_close(part.far(obs)[0].double(), expected, rtol=1e-4, atol=1e-6)
    assert Columns(5) in part.needs.columns
