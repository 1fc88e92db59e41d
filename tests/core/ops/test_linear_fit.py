"""Ridge least squares from sums equals that from the whole data."""

import torch

from kvfw.core.ops.linear_fit import fit, gram_of, r_squared


def test_weights_and_r_squared_of_two_blocks_are_those_of_the_whole() -> None:
    torch.manual_seed(0)
    x, noise = torch.randn(1, 60, 3) * torch.tensor([1.0, 10, 0.1]) + 5, torch.randn(1, 60)
    y = x @ torch.tensor([1.0, -2, 3]) + 4 + noise
    every = torch.ones_like(y, dtype=torch.bool)
    gram = gram_of(x[:, :25], y[:, :25], every[:, :25]) + gram_of(x[:, 25:], y[:, 25:], every[:, 25:])
    weights = fit(gram, 0.0)
    whole = torch.cat((x[0], torch.ones(60, 1)), 1).double()
    expected = torch.linalg.lstsq(whole, y[0, :, None].double()).solution[:, 0]
    torch.testing.assert_close(weights[0], expected, rtol=1e-4, atol=1e-4)
    left = y[0].double() - whole @ expected
    assert abs(float(r_squared(gram, weights)) - float(1 - left.var() / y[0].double().var())) < 1e-6


def test_the_ridge_by_hand() -> None:
    # One feature of variance 1: the weight is cov / (1 + ridge).
    x, y = torch.tensor([[[-1.0], [1.0]]]), torch.tensor([[1.0, 5.0]])
    torch.testing.assert_close(
        fit(gram_of(x, y, torch.ones(1, 2, dtype=torch.bool)), 1.0), torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    )


def test_rows_that_do_not_count_may_hold_anything() -> None:
    x, y = torch.tensor([[[1.0], [torch.nan]]]), torch.tensor([[2.0, torch.inf]])
    assert bool(gram_of(x, y, torch.tensor([[True, False]])).isfinite().all())
