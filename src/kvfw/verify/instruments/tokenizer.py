"""The suite's own small tokenizer, so that no model has to be downloaded."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_SPECIAL = ("<s>", "<|im|>", "<|end|>")
#: Training text of the merges: enough that a word is one to four tokens.
_SAMPLE = """Read the text below. A question about one detail of it comes at the end. This is the end of the text.
What is the access code, the secret password, the number, the name of the place? It was the best of times for whales
and ships, and there was nothing in particular on the shore that could hold him; he took to the water as a matter of
course whenever the winter came. They said that every question has an answer which stands somewhere in the text."""


def _trained() -> Tokenizer:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(_SPECIAL),
        show_progress=False,
    )
    raw.train_from_iterator([_SAMPLE] * 2, trainer)
    return raw


@dataclass  # not frozen: the protocol lets a chat template be set
class SuiteTokenizer:
    """A byte-level BPE tokenizer with a chat template; see :class:`kvfw.core.contracts.task.Tokenizer`."""

    chat_template: Any = "chat"
    raw: Tokenizer = field(default_factory=_trained, repr=False)

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens."""
        return [token for token in map(self.raw.token_to_id, _SPECIAL) if token is not None]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; with special tokens the text begins with ``<s>``."""
        ids: list[int] = self.raw.encode(text).ids
        return [self.all_special_ids[0], *ids] if add_special_tokens else ids

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False, **kwargs: Any) -> str:
        """Text of token ids."""
        return str(self.raw.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> Any:
        """The conversation's text or ids, with every turn between ``<|im|>`` and ``<|end|>``."""
        turns = [f"<|im|>{turn['role']}\n{turn['content']}<|end|>\n" for turn in conversation]
        text = "".join(turns) + ("<|im|>assistant\n" if add_generation_prompt else "")
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Vocabulary entries."""
        return [str(self.raw.id_to_token(token)) for token in ids]
