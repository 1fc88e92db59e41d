"""Describes a part, for ``kvfw show`` and for its page in the documentation."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from kvfw.core.compose.build import build_part, part_class
from kvfw.core.compose.composition import parse
from kvfw.core.contracts.records import MetricInfo
from kvfw.core.parts.part import Part, default_text, part_option, value_text
from kvfw.core.parts.spec import STAGE_KINDS, WRITTEN, Kind, PartSpec
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.errors import RunError, SpecError

if TYPE_CHECKING:  # these import torch, which describing a task or metric does not need
    from kvfw.core.state.observation import Columns, Needs

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


@dataclass(frozen=True)
class OptionFacts:
    """One option of a part.

    Args:
        key: its name.
        default: canonical text of its default; ``"required"`` if it has none.
        about: its description; may be empty.
        rules: allowed values: bounds such as ``">= 1"``, or the choices; empty if any value of its type will do.
        part: kind of part it holds; None for a plain value.
    """

    key: str
    default: str
    about: str
    rules: tuple[str, ...]
    part: Kind | None

    def __str__(self) -> str:
        about = ": ".join(text for text in (f"a {self.part}" if self.part else "", self.about) if text)
        rules = f"  ({', '.join(self.rules)})" if self.rules else ""
        return f"{self.key}={self.default}  {about}{rules}".rstrip()


@dataclass(frozen=True)
class PartFacts:
    """Everything known about a part.

    Args:
        spec: its announcement.
        doc: docstring of its class: formula, source, deviations. Empty for models.
        recipe: composition text a method stands for, else None.
        options: in declared order.
        needs: what has to be observed for it, one phrase each; None for a part that observes nothing by itself.
        usage: how to use it: composition texts, or arguments of ``kvfw eval``.
        notes: further facts by name.
    """

    spec: PartSpec
    doc: str = ""
    recipe: str | None = None
    options: tuple[OptionFacts, ...] = ()
    needs: tuple[str, ...] | None = None
    usage: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()


def describe(spec: PartSpec, registry: Registry | None = None) -> PartFacts:
    """Imports a part and collects its facts; raises RequestError if it cannot be imported."""
    if spec.kind is Kind.MODEL:
        usage = (f"--model {spec.name}",) if spec.facts.get("kind") != "encoder" else ()
        return PartFacts(spec, usage=usage, notes=tuple(spec.facts.items()))
    cls = part_class(spec)
    options = tuple(_option(key, info) for key, info in cls.model_fields.items())
    return PartFacts(
        spec=spec,
        doc=inspect.getdoc(cls) or "",
        recipe=getattr(cls, "recipe", None),
        options=options,
        needs=_needs(spec, registry),
        usage=_usage(spec, options, {key: info.examples[0] for key, info in cls.model_fields.items() if info.examples}),
        notes=(*spec.facts.items(), *_notes(cls), *_calibrated(spec, cls)),
    )


def _option(key: str, info: FieldInfo) -> OptionFacts:
    mark = part_option(info)
    rules = [f"{sign} {getattr(m, name)}" for m in info.metadata for name, sign in _BOUNDS.items() if hasattr(m, name)]
    if get_origin(info.annotation) is Literal:
        rules.append(" or ".join(map(value_text, get_args(info.annotation))))
    return OptionFacts(key, default_text(info), info.description or "", tuple(rules), mark.kind if mark else None)


def _usage(spec: PartSpec, options: tuple[OptionFacts, ...], examples: Mapping[str, str]) -> tuple[str, ...]:
    """The shortest text that uses the part, and the same text with every option spelt out."""
    written = {o.key: examples.get(o.key, _EXAMPLES[o.part]) if o.default == "required" else o.default for o in options}
    least = [f"{o.key}={written[o.key]}" for o in options if o.default == "required"]
    every = [f"{key}={value}" for key, value in written.items()]
    texts = [f"{spec.name}({','.join(given)})" if given else spec.name for given in (least, every)]
    around = WRITTEN.get(spec.kind, "{}")
    for kind, name in _EXAMPLES.items():
        around = around.replace(f"{kind}=...", f"{kind}={name}")
    return tuple(dict.fromkeys(around.format(text) for text in texts)) if spec.kind is not Kind.METRIC else ()


#: The part an example names for a required option of each kind; ``1`` for a plain value whose field has no example.
_EXAMPLES = {Kind.SCORER: "snapkv", Kind.SELECTOR: "topk", Kind.MERGER: "ewmeans", Kind.SPACE: "pre", None: "1"}


def _needs(spec: PartSpec, registry: Registry | None) -> tuple[str, ...] | None:
    try:
        if spec.kind in _LOOKING:
            from kvfw.core.contracts.blame import needs_of  # it imports torch

            found = registry if registry is not None else default_registry()
            return needs_lines(needs_of(build_part(spec.kind, spec.name, found).value, spec.kind))
        if spec.kind not in STAGE_KINDS:
            return None
        from kvfw.core.compress.compressor import Rule  # it imports torch

        needs = reduce(or_, (Rule(policy).needs for policy in parse(spec.name, registry).policies))
    except SpecError:
        return None  # it has required options, so its needs are not known yet
    except RunError as error:
        return (f"cannot be told: {error}",)
    return needs_lines(needs)


#: Kinds that look at observations and are no stages.
_LOOKING = (Kind.ALLOCATOR, Kind.REFINER, Kind.CODEC)


def needs_lines(needs: "Needs") -> tuple[str, ...]:
    """The needs in words, one phrase each."""
    lines = [f"the last {needs.queries} queries" if needs.queries != "all" else "all queries"] if needs.queries else []
    lines += [f"exact column sums of attention{_away(distance)}" for distance in sorted(needs.column_sums)]
    lines += sorted(map(_column_line, needs.columns))
    references = sorted(needs.references, key=lambda each: (each.source, each.count))
    lines += [f"at most {asked.count} reference queries of {_source(asked.source)}" for asked in references]
    for left_out in sorted(needs.moments):
        without = f", without the first {left_out}" if left_out else ""
        lines.append(f"mean and covariance of the queries before RoPE{without}")
    told = {
        "lexical features of the prompt's text": needs.lexical,
        "the weight of the output projection": needs.projection,
        "the prompt's token ids": needs.ids,
        "classes of the prompt's tokens (special, punctuation, image)": needs.token_types,
    }
    lines += [line for line, asked_for in told.items() if asked_for]
    return (*lines, *(f"a forward more: {_PROBES.get(name, f'it reads {name}')}" for name in sorted(needs.probes)))


#: What the model does in probes that are no text file.
_PROBES = {"repeat": "it repeats the prompt"}
_OVER = {"sum": "sum", "max": "maximum", "square": "sum of squares"}


def _column_line(columns: "Columns") -> str:
    each = " by each query head" if columns.heads == "each" else ""
    per_norm = ", over the norm of the query's hidden state" if columns.per_norm else ""
    return (
        f"the {_OVER[columns.over]} of the attention received from the queries of {_source(columns.source)}"
        f"{_away(columns.distance)}{each}{per_norm}"
    )


def _away(distance: int) -> str:
    return f" from at least {distance} tokens away" if distance else ""


def _source(source: str) -> str:
    return "the prompt" if source == "prompt" else f"the probe {source}"


def _calibrated(spec: PartSpec, cls: type[Part]) -> tuple[tuple[str, str], ...]:
    """How to make the calibration file that a part takes."""
    return (("file", f"kvfw calibrate {spec.name} --text FILE"),) if hasattr(cls, "calibration_needs") else ()


def _notes(cls: type[Part]) -> tuple[tuple[str, str], ...]:
    """How a metric is shown and judged."""
    info = getattr(cls, "info", None)
    if not isinstance(info, MetricInfo):
        return ()
    better = {True: "higher is better", False: "lower is better", None: "neither direction is better"}
    unit = {"": "none", "%": "%, stored as a fraction of 1"}.get(info.unit, info.unit)
    return (("heading", info.title), ("unit", unit), ("direction", better[info.higher_is_better]))
