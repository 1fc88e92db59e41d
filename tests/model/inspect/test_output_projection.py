"""The output projection of attention, under whatever name and orientation a family has it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.offloading import offload
from helpers.tiny_models import MODELS, build, close, prompt
from kvfw.core.state.observation import Needs
from kvfw.errors import UnsupportedError
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


def unreadable(model: Any) -> None:
    """As in a model whose layers are offloaded."""
    offload(model.model.layers)


def misshapen(model: Any) -> None:
    """As in a family whose output projection takes something else than the heads' outputs."""
    for attention in attention_modules(model):
        attention.o_proj = nn.Sequential(nn.Linear(64, 64))


@pytest.mark.parametrize("change", [unreadable, misshapen])
def test_a_projection_that_cannot_be_read_is_refused_before_the_model_runs(change: Any) -> None:
    model: Any = build("llama")
    change(model)
    forwards: list[int] = []
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    with pytest.raises(UnsupportedError, match="layers 0, 1, 2 of LlamaForCausalLM have none that kvfw can read"):
        prefill(model, prompt(40)[0].tolist(), Needs(projection=True), sinks=4, recent=8)
    assert not forwards
    assert prefill(model, prompt(40)[0].tolist(), Needs(), sinks=4, recent=8).observations
