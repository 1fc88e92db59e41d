"""Announcing parts, and a method, which is data."""

from typing import ClassVar

from pydantic import Field

from kvfw import Kind, Method, PartSpec, hookimpl


class Short(Method):
    window: int = Field(default=8, ge=1)

    recipe: ClassVar[str] = "select(scorer=snapkv(window=$window))"


@hookimpl
def kvfw_parts() -> list[PartSpec]:
    return [PartSpec(Kind.METHOD, "short", "right_announcement:Short", "a short window", facts={"origin": "a test"})]


method: Method = Short(window=4)
