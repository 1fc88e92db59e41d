"""Finds the parts that a user's text means. Imports no torch."""

from dataclasses import replace

from kvfw.core.compose.build import part_class
from kvfw.core.compose.syntax import OptionNode, parse_part
from kvfw.core.parts.part import part_option
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry

#: Fill in required parts of a generic form, so that ``kvfw verify select`` works without options.
STAND_INS = {
    Kind.SCORER: "snapkv(window=8)",
    Kind.SELECTOR: "topk",
    Kind.MERGER: "ewmeans(iters=2)",
    Kind.SPACE: "post",
}


def named(text: str, kind: Kind | None, registry: Registry) -> list[PartSpec]:
    """All parts that a text, a name with or without options, may mean.

    Raises:
        SpecError: the text is not a part.
        UnknownNameError: no part has the name, or several plugins claim it.
    """
    name = parse_part(text).name if "(" in text else text.strip()
    if kind is not None:
        return [registry.get(kind, name)]
    return list(registry.named(name))


def completed(spec: PartSpec, text: str) -> str:
    """The text with a stand-in for every required part that it does not give."""
    if spec.kind is Kind.MODEL:
        return text
    node = parse_part(text)
    given = {option.key for option in node.options}
    missing = tuple(
        OptionNode(key, parse_part(STAND_INS[mark.kind]), 0)
        for key, info in part_class(spec).model_fields.items()
        if (mark := part_option(info)) and mark.default is None and key not in given and mark.kind in STAND_INS
    )
    return str(replace(node, options=node.options + missing)) if missing else text
