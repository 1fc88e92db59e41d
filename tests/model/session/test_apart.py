"""A probe's attention, over the cache and over its own tokens apart."""

import pytest
import torch

from kvfw.core.state.state import exact_state
from kvfw.model.session.apart import attended_apart, separable, whole_and_causal

HELD, COUNT = 12, 7


def mask() -> torch.Tensor:
    """Every probe token sees the cache, itself and the probe's tokens before it."""
    own = torch.ones(COUNT, COUNT, dtype=torch.bool).tril()
    return torch.cat((torch.ones(COUNT, HELD, dtype=torch.bool), own), 1)[None, None]


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_it_is_attention_over_both(kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(kv_heads)
    query = torch.randn(1, 6, COUNT, 8, generator=generator) * 3
    key, value = (torch.randn(1, kv_heads, HELD + COUNT, 8, generator=generator) for _ in range(2))
    found = attended_apart(query, key, value, HELD, 0.3)
    keys, values = (part.repeat_interleave(6 // kv_heads, 1) for part in (key, value))
    logits = (0.3 * query @ keys.transpose(-1, -2)).masked_fill(~mask(), -torch.inf)
    torch.testing.assert_close(found.output, (logits.softmax(-1) @ values).transpose(1, 2))
    torch.testing.assert_close(found.totals, logits.logsumexp(-1))


def test_only_the_plain_mask_is_computed_apart() -> None:
    assert whole_and_causal(mask(), HELD, COUNT)
    assert whole_and_causal(torch.zeros(1, 1, COUNT, HELD + COUNT).masked_fill(~mask(), -torch.inf), HELD, COUNT)
    assert not whole_and_causal(None, HELD, COUNT)
    assert not whole_and_causal(mask()[..., 1:], HELD, COUNT)
    for query, slot in ((0, 3), (COUNT - 1, HELD + 2), (2, HELD + 4)):  # a slot hidden, a window, a look ahead
        other = mask().clone()
        other[..., query, slot] = ~other[..., query, slot]
        assert not whole_and_causal(other, HELD, COUNT)


def test_only_plain_attention_is_computed_apart() -> None:
    one, real = torch.randn(1, 2, HELD, 8), torch.ones(1, HELD, dtype=torch.bool)
    held = exact_state(one, one, torch.arange(HELD)[None].float(), real)
    assert separable("sdpa", held, one, one, {"scaling": 0.3})
    padded = exact_state(one, one, torch.arange(HELD)[None].float(), torch.arange(HELD)[None] > 1)
    assert not separable("sdpa", padded, one, one, {})
    assert not separable("eager", held, one, one, {})
    assert not separable("sdpa", held, one, one, {"softcap": 20.0})
    assert not separable("sdpa", held, one, one, {"s_aux": torch.zeros(2)})
    assert not separable("sdpa", held, one, one[..., :4], {})
