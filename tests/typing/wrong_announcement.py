"""Announcements and methods with one fault each."""

from typing import ClassVar

from kvfw import Kind, Method, Part, PartSpec, hookimpl


class NoText(Method):
    recipe: ClassVar[int] = 1  # E: Incompatible types in assignment


class Bare(Part):
    pass


@hookimpl
def kvfw_parts() -> list[PartSpec]:
    return [
        PartSpec(Kind.SCORERS, "loud", "loud:Loud", "loud"),  # E: "type[Kind]" has no attribute "SCORERS"
        PartSpec("scorer", "loud", "loud:Loud", "loud"),  # E: has incompatible type "str"; expected "Kind"
        PartSpec(Kind.SCORER, "loud", Bare, "loud"),  # E: has incompatible type "type[Bare]"; expected "str"
        PartSpec(Kind.SCORER, "loud", "loud:Loud"),  # E: Missing positional argument "summary" in call to "PartSpec"
        "loud",  # E: List item 4 has incompatible type "str"; expected "PartSpec"
    ]


method: Method = Bare()  # E: Incompatible types in assignment (expression has type "Bare", variable has type "Method")
