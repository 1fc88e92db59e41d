"""h2o and pinned: formulas against the whole attention matrix, and through a model."""

from dataclasses import replace

import pytest
import torch

from helpers.observations import SCALE, observe, random_row
from kvfw.core.ops.columns import column_sums
from kvfw.core.state.observation import Needs, Observation
from kvfw.errors import RunError
from kvfw.methods.scorers.h2o import H2O
from kvfw.methods.scorers.pinned import Pinned
from kvfw.methods.scorers.snapkv import SnapKV


def observed(length: int = 30, local: int = 0, pad_with: int = 0) -> Observation:
    """One row (or two, the first one padded on the left) with exact column sums."""
    rows = [random_row(length, seed=7)]
    if pad_with:
        rows.append(random_row(length + pad_with, seed=8))
    obs = observe(rows, window=length + pad_with)
    assert obs.queries is not None
    assert obs.query_positions is not None
    sums = column_sums(
        obs.queries, obs.query_positions.masked_fill(~obs.state.valid[:, 0], -1.0), obs.state, SCALE, (local,)
    )
    return replace(obs, column_sums=sums)


@pytest.mark.parametrize("local", [0, 4])
def test_h2o_divides_by_the_queries_that_could_see_a_key(local: int) -> None:
    obs = observed(local=local)
    scores = H2O(local=local).score(obs.narrowed(H2O(local=local).needs))
    for j in range(30):
        exposures = 30 - j - local
        expected = obs.column_sums[local][..., j] / exposures if exposures > 0 else torch.zeros(1, 2)
        torch.testing.assert_close(scores[..., j], expected)


def test_h2o_without_norm_is_the_plain_sum() -> None:
    obs = observed()
    torch.testing.assert_close(H2O(norm="none").score(obs), obs.column_sums[0])


def test_uniform_attention_ranks_all_keys_alike_only_without_the_bias() -> None:
    # If every query spread its attention evenly, key j would receive sum over i >= j of 1 / (i + 1): early keys more.
    received = torch.tensor([sum(1 / (i + 1) for i in range(j, 30)) for j in range(30)]).expand(1, 2, 30)
    obs = replace(observed(), column_sums={0: received})
    plain, fair = H2O(norm="none").score(obs)[0, 0], H2O().score(obs)[0, 0]
    assert plain.argmax() == 0
    assert float(plain.max() / plain.min()) > 100
    assert float(fair.max() / fair.min()) < 5


def test_h2o_of_a_padded_row_is_that_of_the_row_alone() -> None:
    alone = H2O().score(observed())
    padded = H2O().score(observed(pad_with=9))
    torch.testing.assert_close(padded[:1, :, 9:], alone, atol=1e-5, rtol=1e-5)


def test_pinned_raises_rare_tokens() -> None:
    obs = observe([random_row(30, seed=9)])
    lexical = torch.zeros(1, 30)
    lexical[0, [12, 13]] = 1.0
    obs = replace(obs, lexical=lexical)
    base = SnapKV().score(obs)
    scores = Pinned(attention=SnapKV()).score(obs)
    torch.testing.assert_close(scores[..., 12:14], 11 * base[..., 12:14])
    torch.testing.assert_close(scores[..., :12], base[..., :12])
    torch.testing.assert_close(Pinned(strength=0, attention=SnapKV()).score(obs), base)


def test_pinned_needs_what_its_attention_needs_and_the_text() -> None:
    assert Pinned(attention=SnapKV(window=32)).needs == Needs(queries=32, lexical=True)
    assert Pinned(attention=H2O(local=3)).needs == Needs(column_sums=frozenset({3}), lexical=True)


def test_looking_at_what_was_not_asked_for_is_refused_by_name() -> None:
    obs = observed()
    with pytest.raises(RunError, match="column_sums"):
        H2O(local=5).score(obs)
    with pytest.raises(RunError, match="lexical"):
        Pinned(attention=H2O()).score(replace(obs, lexical=None))
    hidden = replace(obs, lexical=torch.zeros(1, 30)).narrowed(Needs(queries=4))
    assert hidden.lexical is None
    assert not hidden.column_sums
