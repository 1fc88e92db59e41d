"""KVzap's linear surrogate of KVzip+ (Jégou and Jeblick 2026, arXiv 2601.07891)."""

from collections.abc import Iterable
from itertools import count
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Float32
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.contracts.calibration import CalibratedPart, Piece
from kvfw.core.contracts.parts import Scorer
from kvfw.core.ops.linear_fit import Gram, fit, gram_of, r_squared
from kvfw.core.parts.part import PartOption
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.rope import unrotate

#: One piece of the text in this many is held out of the fit, to tell how well it does on what it has not seen.
HELD_OUT = 5
#: Added to the teacher's scores before their logarithm.
LEAST = 1e-8


class KVzap(CalibratedPart):
    """A linear map from a token's key and value to the logarithm of another scorer's score, learned from a text.

    ``s_j = exp(w_h.f_j + b_h)`` with ``f_j`` the key before RoPE, the value and the logarithms of both norms, one map
    per layer and KV head, by ridge least squares over the text's tokens after the sinks. It costs no second pass at
    the prompt. Without a file the scores are the teacher's own.

    Paper: Jégou and Jeblick 2026, KVzap: Fast, Adaptive, and Faithful KV Cache Pruning, arXiv 2601.07891.

    Deviations: the paper's map reads the hidden state at the layer's input; key and value are two projections of it,
    so what they leave out is lost, but they are there whenever a cache is, also when it is compressed again. The paper
    evicts below a threshold; here a budget decides.
    """

    comparable: ClassVar[bool] = True

    teacher: Annotated[
        Scorer, SkipValidation, PartOption(Kind.SCORER, "kvzip(plus=true)"), Field(description="its scores are learned")
    ]
    ridge: float = Field(1e-3, ge=0, description="added to the features' correlation matrix")

    @property
    def needs(self) -> Needs:
        """Nothing with a file; without one what the teacher needs."""
        return Needs() if self.file is not None else self.calibration_needs

    @property
    def calibration_needs(self) -> Needs:
        """What the teacher needs."""
        return self.teacher.needs

    def calibrate(self, pieces: Iterable[Piece]) -> dict[str, Tensor]:
        """The maps; R², mean over heads, of the fit and of every fifth piece, which it has not seen."""
        seen, unseen = dict[int, Gram](), dict[int, Gram]()
        for number, piece in zip(count(1), pieces, strict=False):
            into = seen if number % HELD_OUT else unseen
            for layer, obs in piece.items():
                wanted = (obs.score(self.teacher)[0].float() + LEAST).log()
                new = gram_of(features(obs)[0], wanted, obs.middle[0])
                into[layer] = into[layer] + new if layer in into else new
        maps = {layer: fit(gram, self.ridge) for layer, gram in seen.items()}
        found = {f"{layer}.map": each.float() for layer, each in maps.items()}
        for name, grams in (("r2_fit", seen), ("r2_held_out", unseen)):
            each = [r_squared(grams[layer], maps[layer]) for layer in grams]
            found |= {name: torch.cat(each).mean()} if each else {}
        return found

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """The map's prediction of the teacher's score."""
        learned = self.learned("map", obs.layer, obs.state.keys.device)
        if learned is None:
            return obs.score(self.teacher)
        return (features(obs) @ learned[:, :-1, None] + learned[:, -1:, None]).squeeze(-1).clamp(max=80).exp()


def features(obs: Observation) -> Float32[Tensor, "B Hkv N F"]:
    """Key before RoPE, value, and the logarithms of their norms; 0 for empty slots."""
    state, gone = obs.state, ~obs.state.valid[..., None]
    keys, values = (part.float().masked_fill(gone, 0.0) for part in (state.keys, state.values))
    keys = keys if obs.rope is None else unrotate(keys, state.positions.clamp(min=0), obs.rope)
    norms = [part.norm(dim=-1, keepdim=True).clamp(min=1e-6).log() for part in (keys, values)]
    return torch.cat((keys, values, *norms), -1).masked_fill(gone, 0.0)
