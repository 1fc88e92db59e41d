"""Every error kvfw raises on purpose. The message names the value, the rule and the way out.

KvfwError
├── RequestError       the request was wrong; the command line ends with exit code 2
│   ├── SpecError        a composition that does not parse, with a caret under the fault
│   ├── UnknownNameError a name no part, model or task answers to, with the closest ones
│   ├── OptionError      an option that does not exist or has a wrong value
│   ├── BudgetError      a ratio, share or slot count that cannot be met
│   ├── PromptError      a prompt that cannot be built as asked
│   └── UnsupportedError a model or call kvfw cannot handle correctly, with the reason
└── RunError           the run failed although the request was right; exit code 1
    ├── FetchError       a download that failed or did not match its hash
    └── StoreError       files of a run that cannot be written or read
"""


class KvfwError(Exception):
    """Base of all errors meant for the user. ``exit_code`` is what the command line ends with."""

    exit_code = 1


class RequestError(KvfwError):
    """The request was wrong: nothing was run."""

    exit_code = 2


class SpecError(RequestError):
    """A composition text that does not follow the grammar.

    Args:
        reason: what is wrong and what to write instead.
        text: the whole composition text.
        at: index of the first wrong character, 0 <= at <= len(text).
    """

    def __init__(self, reason: str, text: str, at: int) -> None:
        self.reason, self.text, self.at = reason, text, at
        super().__init__(f"{reason}\n  {text}\n  {' ' * at}^")


class UnknownNameError(RequestError):
    """A name that nothing registered answers to."""


class OptionError(RequestError):
    """An option that does not exist, or whose value has the wrong type or range."""


class BudgetError(RequestError):
    """A ratio, fraction, slot count or share that cannot be met."""


class PromptError(RequestError):
    """A prompt that cannot be built as asked, also for the text or the option it is made from."""


class UnsupportedError(RequestError):
    """A model, cache or call that kvfw cannot handle correctly."""


class RunError(KvfwError):
    """The request was right, the run failed."""


class FetchError(RunError):
    """A download that failed, or whose content is not what was expected."""


class StoreError(RunError):
    """Files of a run that cannot be written or read."""
