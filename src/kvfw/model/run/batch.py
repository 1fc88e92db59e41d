"""Greedy decoding of several caches of one prompt as a batch, with the same tokens as one by one."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvfw.model.cache.cache import CompressedCache
from kvfw.model.compat.versions import passed
from kvfw.model.inspect.layers import text_config
from kvfw.model.run.decode import decoding, end_tokens

#: By dtype, how far apart the two best logits of a step must lie for the choice to be certain in a batch, as a fraction
#: of the largest logit. A product of several rows rounds differently from that of one row: in float32 the logits of the
#: embedded model, of size 20, differ by less than 0.001. In half precision most steps would be uncertain: no entry.
SURE_GAP: Mapping[torch.dtype, float] = MappingProxyType({torch.float32: 1e-3, torch.float64: 1e-3})
#: Names of a layer's number of experts in configurations.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def can_decode_together(model: PreTrainedModel) -> bool:
    """Whether a batch reliably gives the tokens that its rows give alone.

    Not in half precision, nor with reduced-precision products of float32 (TF32), nor with a mixture of experts, where
    rounding that selects another expert can change logits by any amount.
    """
    experts = any(getattr(text_config(model), name, None) for name in EXPERTS)
    exact = torch.get_float32_matmul_precision() == "highest"
    return model.dtype in SURE_GAP and exact and not experts


@torch.inference_mode()
def feed_together(model: PreTrainedModel, cache: CompressedCache, rows: int, tokens: Sequence[int]) -> Tensor:
    """Appends the same exact tokens to every row; returns the logits ``[rows, V]`` float32 of the last."""
    with decoding(model, cache):
        ids = torch.tensor([list(tokens)], device=model.device).expand(rows, -1)
        return _last_logits(model, cache, ids)


@torch.inference_mode()
def greedy_together(
    model: PreTrainedModel,
    cache: CompressedCache,
    first_logits: Tensor,
    max_new_tokens: int,
    *,
    first_is_sure: bool = False,
) -> tuple[tuple[int, ...] | None, ...]:
    """Tokens of every row's greedy continuation, as :func:`kvfw.model.run.decode.greedy` gives them row by row.

    A row is None if its two best logits ever come so close that rounding may have decided: decode it alone. Rows that
    have ended leave the batch.

    Args:
        cache: the rows' caches; it grows and shrinks.
        first_logits: ``[B, V]``.
        max_new_tokens: at least 1.
        first_is_sure: the first logits did not come from a batch.
    """
    ends = end_tokens(model)
    written: dict[int, list[int]] = {row: [] for row in range(first_logits.shape[0])}
    unsure: set[int] = set()
    active = list(written)
    logits = first_logits
    with decoding(model, cache):
        while True:
            best = logits.topk(2, dim=-1)
            gaps = best.values[:, 0] - best.values[:, 1]
            sure = gaps >= SURE_GAP[model.dtype] * logits.abs().amax(dim=-1)
            certain = [True] * len(active) if first_is_sure and not written[active[0]] else sure.tolist()
            going = []
            for place, (row, token, known) in enumerate(zip(active, best.indices[:, 0].tolist(), certain, strict=True)):
                written[row].append(token)
                if not known:
                    unsure.add(row)
                elif token not in ends and len(written[row]) < max_new_tokens:
                    going.append(place)
            if not going:
                break
            if len(going) < len(active):
                cache.batch_select_indices(torch.tensor(going, device=model.device))
                active = [active[place] for place in going]
            ids = torch.tensor([[written[row][-1]] for row in active], device=model.device)
            logits = _last_logits(model, cache, ids)
    return tuple(None if row in unsure else tuple(tokens) for row, tokens in written.items())


def _last_logits(model: PreTrainedModel, cache: CompressedCache, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids, **passed(model, cache), use_cache=True, logits_to_keep=1).logits
    return logits[:, -1].float()
