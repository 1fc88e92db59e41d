"""Calls of the public surface with one fault each."""

import kvfw


def script() -> None:
    loaded = kvfw.load_model("smollm2-135m", devise="cpu")  # E: Unexpected keyword argument "devise" for "load_model"
    kvfw.parse(4)  # E: Argument 1 to "parse" has incompatible type "int"; expected "str"
    with kvfw.attach(loaded.model, "snapkv", ratio=[4, 8]) as cache:  # E: Argument "ratio" to "attach"
        cache.state("first")  # E: Argument 1 to "state" of "CompressedCache" has incompatible type "str"
    kvfw.evaluate("snapkv")  # E: Argument 1 to "evaluate" has incompatible type "str"; expected "EvalConfig"
    kvfw.compress("snapkv")  # E: Module has no attribute "compress"


def use(scorer: kvfw.Scorers) -> None:  # E: Name "kvfw.Scorers" is not defined
    print(scorer)
