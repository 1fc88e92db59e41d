"""A task."""

from collections.abc import Sequence

from kvfw import Part, Prompt, PromptError, Task, Tokenizer, Trial


class Echo(Part):
    def check_settings(self, contexts: Sequence[int], depths: Sequence[float], seeds: Sequence[int]) -> None:
        if min(contexts) < 2:
            raise PromptError(f"a context of {min(contexts)} tokens is too short; ask for 2 or more")

    def check(
        self, tokenizer: Tokenizer, contexts: Sequence[int], depths: Sequence[float], seeds: Sequence[int]
    ) -> None:
        self.check_settings(contexts, depths, seeds)

    def prompt(self, tokenizer: Tokenizer, trial: Trial) -> Prompt:
        ids = tuple(tokenizer.encode("echo " * trial.context_tokens, add_special_tokens=False)[: trial.context_tokens])
        return Prompt(input_ids=ids, needle=range(1), answer="echo", context_end=1, begun="", text="")

    def recalled(self, response: str, prompt: Prompt) -> bool:
        return prompt.answer in response


echo: Task = Echo()
