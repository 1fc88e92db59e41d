"""The output projection of attention, under whatever name and orientation a family has it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.tiny_models import MODELS, build, close, prompt
from kvfw.core.state.observation import Needs
from kvfw.model.compat.routing import model_attention, own_implementation, routed
from kvfw.model.inspect.layers import anatomy, attention_modules
from kvfw.model.run.prefill import prefill

REFUSED = {"stablelm", "deepseek", "mistral_sliding"}
SUPPORTED = sorted(MODELS.keys() - REFUSED)


class Listener:
    """Lets the model attend as it does, and keeps what its heads put out, layer by layer."""

    def __init__(self, model: Any) -> None:
        self.base = own_implementation(model)
        self.heads: list[Tensor] = []

    def owns(self, module: nn.Module, key: Tensor) -> bool:
        """All calls."""
        return True

    def attend(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """The model's own attention."""
        found = model_attention(module, self.base)(module, *args, **kwargs)
        self.heads.append(found[0])
        return found

    def see_padding(self, padding: Tensor | None) -> None:
        """There is none."""


@pytest.mark.parametrize("name", SUPPORTED)
@torch.no_grad()
def test_the_projection_makes_a_layers_output_of_its_heads_outputs(name: str) -> None:
    model: Any = build(name)
    outputs: list[Tensor] = []
    for module in attention_modules(model):
        module.register_forward_hook(lambda module, args, out: outputs.append(out[0]))
    listener = Listener(model)
    with routed(model, listener):
        model(prompt(7))
    layers = anatomy(model).layers
    for layer, heads, output in zip(layers, listener.heads, outputs, strict=True):
        assert layer.output_projection is not None
        close(heads.flatten(2) @ layer.output_projection.T, output)


@pytest.mark.parametrize("name", ["phi", "gpt_neox", "gpt2"])
def test_who_asks_for_the_projection_sees_it(name: str) -> None:
    model = build(name)
    seen = prefill(model, prompt(40)[0].tolist(), Needs(projection=True), sinks=4, recent=8).observations
    assert all(obs.output_projection is not None for obs in seen.values())


def renamed(attention: Any) -> None:
    attention.to_outputs = attention.o_proj
    attention.forward = attention.forward
    del attention.o_proj


def packed(attention: Any) -> None:
    """As quantised weights are held."""
    attention.o_proj.weight.data = attention.o_proj.weight.data.reshape(-1, 1)


def elsewhere(attention: Any) -> None:
    attention.o_proj.to("meta")


@pytest.mark.parametrize("change", [packed, elsewhere])
def test_a_projection_that_cannot_be_read_is_refused_before_the_model_runs(change: Any) -> None:
    model: Any = build("llama")
    forwards: list[int] = []
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    with pytest.raises(AssertionError):  # placeholder
        pass
