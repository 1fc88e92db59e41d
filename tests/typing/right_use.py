"""The public surface in a script of one's own: every call has a type."""

from typing import assert_type

import kvfw
from kvfw import Composition, EvalConfig, Evaluation, KVState, LoadedModel


def script(model: str) -> None:
    loaded = kvfw.load_model(model)
    assert_type(loaded, LoadedModel)
    assert_type(kvfw.parse("snapkv:0.8+ewmeans_pre:0.2"), Composition)
    with kvfw.attach(loaded.model, "snapkv", ratio=4, sinks=4, recent=84) as cache:
        assert_type(cache.state(0), KVState)
    assert_type(kvfw.evaluate(EvalConfig(compose=("snapkv",), seeds=2)), Evaluation)
