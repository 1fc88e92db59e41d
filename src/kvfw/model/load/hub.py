"""One quick question to the Hugging Face hub before anything is loaded from it.

Without a network the hub client retries every file for half a minute. One question with a short timeout decides whether
to use the network or only the local cache, and catches the usual mistakes with a clear error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvfw.errors import FetchError, KvfwError, UnknownNameError, UnsupportedError

HUB_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class HubAnswer:
    """What the hub said about a repository.

    Attributes:
        reachable: whether it answered; if not, only locally cached files can be loaded.
        has_safetensors: whether the repository holds weights in safetensors; None when not known.
        trouble: why it did not answer; empty when it did.
    """

    reachable: bool
    has_safetensors: bool | None = None
    trouble: str = ""


HubQuestion = Callable[[str], HubAnswer]
"""Asks about a hub id; tests pass their own."""


def ask_hub(name: str, *, endpoint: str | None = None, timeout_s: float = HUB_TIMEOUT_S) -> HubAnswer:
    """Asks the hub, or the one at ``endpoint``, whether the model ``name`` (``owner/model``) exists.

    Raises:
        UnknownNameError: the hub has no such model, or not for this user.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        info = HfApi(endpoint=endpoint).model_info(name, timeout=timeout_s)
    except GatedRepoError:
        return HubAnswer(reachable=True)  # the error raised for its files later says what to do
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UnknownNameError(
            f"the hub has no model {name!r} that you may see; check the spelling, "
            "or log in with `hf auth login` if it is private"
        ) from error
    except Exception as error:  # which HTTP library raises depends on the hub client's version
        return HubAnswer(reachable=False, trouble=f"{type(error).__name__}: {error}".strip())
    files = [sibling.rfilename for sibling in info.siblings or ()]
    return HubAnswer(reachable=True, has_safetensors=any(f.endswith(".safetensors") for f in files))


def explain_hub_failure(name: str, answer: HubAnswer, error: BaseException) -> KvfwError:
    """The error to show when loading the hub model ``name`` failed with ``error``."""
    from huggingface_hub.errors import GatedRepoError

    if any(isinstance(link, GatedRepoError) for link in _causes(error)):
        return FetchError(
            f"the hub model {name!r} is gated: accept its terms on https://huggingface.co/{name} "
            "and log in with `hf auth login`"
        )
    if not answer.reachable:
        return FetchError(
            f"the hub model {name!r} is not complete in the local Hugging Face cache, and the hub cannot be reached "
            f"({answer.trouble}). Connect once, or give a local model folder or an embedded model"
        )
    if isinstance(error, OSError):
        return FetchError(f"the hub model {name!r} could not be loaded: {error}")
    return UnsupportedError(f"the hub model {name!r} cannot be loaded: {error}")


def _causes(error: BaseException) -> list[BaseException]:
    chain = [error]
    while (link := chain[-1].__cause__ or chain[-1].__context__) is not None and link not in chain:
        chain.append(link)
    return chain
