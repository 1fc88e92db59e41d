"""What the suite measures with: memory, and where tensors are made."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.verify.checks.placement import Placement
from kvfw.verify.instruments.meter import Meter
from kvfw.verify.instruments.observed import RECENT, SINKS, observe, three_rows


def test_the_meter_sees_the_largest_tensor_and_the_peak() -> None:
    x = torch.zeros(1000)
    with Meter() as meter:
        a = x + 1
        b = x + 2
        del a
        c = b.view(10, 100).expand(7, 10, 100)
        d = torch.cat((b, x))
    assert meter.largest_bytes == 8000
    assert meter.peak_bytes == 12000  # a and b, then b and d
    assert c.shape == (7, 10, 100)
    assert d.shape == (2000,)


def test_views_and_writes_in_place_take_no_memory() -> None:
    x = torch.zeros(1000)
    with Meter() as meter:
        x.view(10, 100).add_(1)
        x[5:].mul_(2)
    assert (meter.largest_bytes, meter.peak_bytes) == (0, 0)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x + torch.arange(4),
        lambda x: torch.cat((x, torch.zeros(4))),
        lambda x: x * (torch.arange(4) + 1).float(),
        lambda x: torch.where(torch.ones(4, dtype=torch.bool), x, 0.0),
    ],
)
def test_a_tensor_without_a_device_is_noticed_where_it_meets_the_input(work: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(4)
    with Placement() as placement:
        work(x)
    assert len(placement.faults) == 1


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x + torch.arange(4, device=x.device),
        lambda x: x + torch.arange(4).to(x.device),
        lambda x: x + torch.arange(4).to(device=x.device),
        lambda x: x + torch.arange(4).to(x),
        lambda x: x[torch.arange(2)],
        lambda x: x * torch.tensor(2.0),
        lambda x: x + torch.zeros_like(x) + x.new_ones(4),
        lambda x: torch.where(x > 0.5, x, 0.0),
    ],
)
def test_what_works_on_an_accelerator_is_no_fault(work: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(4)
    with Placement() as placement:
        out = work(x)
    assert placement.faults == []
    assert id(out) not in placement.unplaced


def test_a_result_made_without_a_device_is_known() -> None:
    with Placement() as placement:
        out = torch.arange(4) + 1
    assert id(out) in placement.unplaced


def test_the_suites_prompts_can_be_compressed() -> None:
    bound = compressor(parse("snapkv"), amount(ratio=4), sinks=SINKS, recent=RECENT)
    obs = observe(three_rows(), bound.needs)
    state = bound.compress(obs, torch.full((3, 2), 4))
    assert state.valid.sum(-1).tolist() == [[SINKS + RECENT + 4] * 2] * 3
