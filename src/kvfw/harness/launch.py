"""lm-eval's own command line, with the model ``kvfw`` known to it."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from kvfw.errors import RunError, UnsupportedError

#: Where lm-eval finds the model; pyproject.toml says the same to versions that read entry points.
MODEL = "kvfw.harness.lm:CompressedLM"


def launch(arguments: Sequence[str]) -> None:
    """Runs lm-eval's command line with these arguments; it ends the process where they are wrong.

    lm-eval up to 0.4.13 knows only the models of its own source; later ones also look at entry points of the group
    ``lm_eval.models``. The name is announced here, the model imported when it is asked for.

    Raises:
        UnsupportedError: lm-eval is not installed.
        RunError: lm-eval could not read or write a file.
    """
    if missing := [name for name in ("lm_eval", "accelerate") if find_spec(name) is None]:
        raise UnsupportedError(f"{' and '.join(missing)} not installed; pip install 'kvfw[lm-eval]'")
    from lm_eval import models as _known_models  # noqa: F401  # fills the registry, which is then not filled again
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import model_registry

    if "kvfw" not in model_registry:
        model_registry.register("kvfw", target=MODEL)
    sys.argv = ["lm_eval", *arguments]
    try:
        cli_evaluate()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunError(f"lm-eval cannot read or write a file: {error}") from error
