"""Names to parts. Filled through pluggy hooks; nothing behind a name is imported before the name is used."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import cast

import pluggy

from kvfw.core.hookspecs import GROUP, KvfwHooks
from kvfw.core.parts import STAGE_KINDS, Kind, PartSpec
from kvfw.errors import RequestError, UnknownNameError

BUILTIN_PLUGINS = ("kvfw.methods", "kvfw.metrics", "kvfw.tasks", "kvfw.model.catalogue")


def namespace(kind: Kind) -> str:
    """The namespace a kind's names live in: names of stages, methods and scorers must not collide."""
    return "stage" if kind in STAGE_KINDS else kind.value


@dataclass(frozen=True)
class Registry:
    """An immutable table of parts.

    Args:
        specs: parts by (namespace, name).
        problems: one line per plugin that could not be used, and why.
    """

    specs: Mapping[tuple[str, str], PartSpec]
    problems: tuple[str, ...] = ()

    def of_kind(self, kind: Kind) -> tuple[PartSpec, ...]:
        """All parts of a kind, in order of registration."""
        return tuple(spec for spec in self.specs.values() if spec.kind is kind)

    def get(self, kind: Kind, name: str) -> PartSpec:
        """The part of that kind and name.

        Raises:
            UnknownNameError: nothing is registered under it; the message has the closest names and the list.
        """
        spec = self.specs.get((namespace(kind), name))
        if spec is None or spec.kind is not kind:
            raise UnknownNameError(unknown(kind.value, name, [spec.name for spec in self.of_kind(kind)]))
        return spec

    def stage(self, name: str) -> PartSpec:
        """The part that answers to a stage name: a generic form, a method or a scorer.

        Raises:
            UnknownNameError: as in :meth:`get`.
        """
        spec = self.specs.get(("stage", name))
        if spec is None:
            raise UnknownNameError(unknown("method", name, [n for space, n in self.specs if space == "stage"]))
        return spec


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Message for a name that does not exist: the closest ones, then all."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return f"unknown {what} {name!r}.{hint} Known: {', '.join(names) or 'none'}"


def register(specs: Iterable[PartSpec]) -> Registry:
    """Builds a registry.

    Raises:
        RequestError: two parts claim one name in one namespace.
    """
    table: dict[tuple[str, str], PartSpec] = {}
    for spec in specs:
        key = (namespace(spec.kind), spec.name)
        if key in table:
            other = table[key]
            raise RequestError(
                f"two parts claim the name {spec.name!r}: {other.kind} of {other.provider} and {spec.kind} of "
                f"{spec.provider}. Rename one, or uninstall the plugin you do not need"
            )
        table[key] = spec
    return Registry(table)


def collect(plugins: Iterable[EntryPoint] | None = None) -> Registry:
    """Asks kvfw's own plugins and every installed one (entry-point group ``kvfw``) for their parts.

    A plugin that cannot be imported or answers with something else becomes a line in ``problems``; all others work.

    Args:
        plugins: entry points to ask in place of the installed ones.

    Raises:
        RequestError: two plugins claim one name.
    """
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(KvfwHooks)
    problems: list[str] = []
    for module in BUILTIN_PLUGINS:
        manager.register(import_module(module), name=module)
    if plugins is None:
        plugins = entry_points(group=GROUP)
    for entry in sorted(plugins, key=lambda entry: entry.name):
        try:
            plugin = entry.load()
            manager.register(plugin, name=entry.name)
        except Exception as error:  # whatever a stranger's module raises is reported by name, not swallowed
            problems.append(f"plugin {entry.name!r} ({entry.value}) cannot be loaded: {error!r}")
            continue
        if not any(hook.has_spec() for hook in manager.get_hookcallers(plugin) or ()):
            problems.append(f"plugin {entry.name!r} ({entry.value}) implements no hook of kvfw, such as kvfw_parts")
    specs: list[PartSpec] = []
    for implementation in manager.hook.kvfw_parts.get_hookimpls():
        # Asked one by one, so that the provider is known and one broken plugin stops no other.
        name = implementation.plugin_name
        try:
            announced = cast(Iterable[PartSpec], implementation.function())
            specs.extend(with_provider(announced, "kvfw" if name in BUILTIN_PLUGINS else name))
        except Exception as error:
            problems.append(f"plugin {name!r} cannot list its parts: {error!r}")
    return replace(register(specs), problems=tuple(problems))


@cache
def default_registry() -> Registry:
    """The registry of this installation, collected once per process."""
    return collect()


def with_provider(specs: Iterable[PartSpec], provider: str) -> tuple[PartSpec, ...]:
    """The same specs, marked with the plugin they came from."""
    return tuple(replace(spec, provider=provider) for spec in specs)
