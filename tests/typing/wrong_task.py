"""Tasks with one fault each."""

from collections.abc import Sequence

from kvfw import Part, Prompt, Task, Tokenizer, Trial


class NeverChecks(Part):
    def prompt(self, tokenizer: Tokenizer, trial: Trial) -> Prompt:
        return Prompt(input_ids=(1,), answer="one")  # E: Missing positional arguments "needle", "context_end"

    def recalled(self, response: str, prompt: Prompt) -> bool:
        return prompt.reply in response  # E: "Prompt" has no attribute "reply"


class ReturnsText(Part):
    def check_settings(self, contexts: Sequence[int], depths: Sequence[float], seeds: Sequence[int]) -> None: ...

    def check(
        self, tokenizer: Tokenizer, contexts: Sequence[int], depths: Sequence[float], seeds: Sequence[int]
    ) -> None: ...

    def prompt(self, tokenizer: Tokenizer, trial: Trial) -> str:
        trial.seed = 1  # E: Property "seed" defined in "Trial" is read-only
        return tokenizer.encode("text")  # E: Incompatible return value type (got "list[int]", expected "str")

    def recalled(self, response: str, prompt: Prompt) -> float:
        return 1.0


never: Task = NeverChecks()  # E: Incompatible types # N: is missing following "Task" protocol members # N: check
text: Task = ReturnsText()  # E: Incompatible types # N: trial: Trial) -> Prompt # N: prompt: Prompt) -> float
