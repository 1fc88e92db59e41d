"""Finds and loads plugins one by one; the faults of one are recorded and do not stop the others."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from typing import cast

import pluggy

from kvfw.core.parts.spec import Kind, PartSpec, fault
from kvfw.core.registry.hooks import GROUP, KvfwHooks

BUILTIN_PLUGINS = ("kvfw.methods", "kvfw.metrics", "kvfw.tasks", "kvfw.model.embedded.catalogue")
#: Environment variable that names the plugins to load, separated by commas; empty: none; unset: all.
VARIABLE = "KVFW_PLUGINS"
OWN = "kvfw"


@dataclass(frozen=True)
class Plugin:
    """A plugin and the result of loading it.

    Args:
        name: of its entry point; ``kvfw`` for the built-in parts.
        distribution, version: of the package it was installed with, if known.
        specs: the well-formed parts it announced.
        problems: its faults, one line each.
        wanted: False if ``KVFW_PLUGINS`` leaves it out; then it was not imported.
    """

    name: str
    distribution: str | None = None
    version: str | None = None
    specs: tuple[PartSpec, ...] = ()
    problems: tuple[str, ...] = ()
    wanted: bool = True

    @property
    def origin(self) -> str:
        """Distribution and version."""
        return " ".join(text for text in (self.distribution, self.version) if text) or "unknown distribution"

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.origin}"


def own_plugin() -> Plugin:
    """The built-in parts, announced through the same hook; a fault in them is a bug of kvfw and is raised."""
    specs: list[PartSpec] = []
    for module in BUILTIN_PLUGINS:
        found, problems = ask(import_module(module))
        if problems:
            raise AssertionError(f"{module} announces its parts wrongly: {'; '.join(problems)}")
        specs += found
    return Plugin(OWN, OWN, own_version(), tuple(specs))


def own_version() -> str | None:
    """The installed version; None if kvfw runs from source without being installed."""
    try:
        return version(OWN)
    except PackageNotFoundError:
        return None


def load_plugins(
    own: Plugin, entries: Iterable[EntryPoint], environ: Mapping[str, str]
) -> tuple[tuple[Plugin, ...], tuple[str, ...]]:
    """All plugins ordered by name, and what is wrong with ``KVFW_PLUGINS``."""
    ordered = sorted(entries, key=lambda entry: (entry.name, distribution_of(entry)[0] or "", entry.value))
    known = list(dict.fromkeys(entry.name for entry in ordered))
    wanted, notes = wanted_names(environ, known)
    first = {own.name: own}
    plugins = []
    for entry in ordered:
        plugin = Plugin(entry.name, *distribution_of(entry), wanted=entry.name in wanted)
        if plugin.wanted:
            if entry.name in first:
                other = first[entry.name].origin
                plugin = replace(plugin, problems=(f"is left out: {other} brings a plugin of that name, too",))
            else:
                plugin = first[entry.name] = loaded_plugin(entry, plugin)
        plugins.append(plugin)
    return tuple(plugins), notes


def wanted_names(environ: Mapping[str, str], known: Sequence[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Names of the plugins to load, and a line for every name in ``KVFW_PLUGINS`` that is not installed."""
    text = environ.get(VARIABLE)
    if text is None:
        return frozenset(known), ()
    names = [name for name in (part.strip() for part in text.split(",")) if name]
    notes = [
        f"{VARIABLE} names the plugin {name!r}, which is not installed.{_closest(name, known)} "
        f"Installed: {', '.join(known) or 'none'}"
        for name in names
        if name not in known
    ]
    return frozenset(names), tuple(notes)


def loaded_plugin(entry: EntryPoint, plugin: Plugin) -> Plugin:
    """The plugin with its parts and problems, after importing its entry module."""
    try:
        specs, problems = ask(entry.load())
    # Whatever a plugin's module raises, SystemExit included, is reported under its name.
    except (Exception, SystemExit) as error:
        return replace(plugin, problems=(f"cannot be loaded from {entry.value!r}: {error!r}",))
    marked = tuple(replace(spec, kind=Kind(spec.kind), provider=entry.name) for spec in specs)
    return replace(plugin, specs=marked, problems=problems)


def ask(module: object) -> tuple[tuple[PartSpec, ...], tuple[str, ...]]:
    """The well-formed parts of a plugin, and its faults, one line each.

    Raises:
        pluggy.PluginValidationError: a hook declares arguments that kvfw does not pass.
    """
    # One manager per plugin, so that no plugin can disturb another's hooks.
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(KvfwHooks)
    manager.register(module)
    hooks = manager.get_hookcallers(module) or []
    if not hooks:
        return (), ("implements no hook of kvfw, such as kvfw_parts",)
    specs: list[PartSpec] = []
    problems = list(unknown_hooks(hooks))
    for implementation in manager.hook.kvfw_parts.get_hookimpls():
        announced = cast(Callable[[], Iterable[object]], implementation.function)
        try:
            # A complete list first: nothing of a plugin that fails half-way is used.
            found = list(announced())
        except (Exception, SystemExit) as error:
            problems.append(f"cannot list its parts: {error!r}")
            continue
        specs += [spec for spec in found if isinstance(spec, PartSpec) and fault(spec) is None]
        problems += [wrong for wrong in map(fault, found) if wrong is not None]
    return tuple(specs), tuple(problems)


def unknown_hooks(hooks: Iterable[pluggy.HookCaller]) -> list[str]:
    """One line per implemented hook that kvfw does not have, unless it is marked optional."""
    known = [hook for hook in vars(KvfwHooks) if not hook.startswith("_")]
    return [
        f"implements the unknown hook {hook.name!r}.{_closest(hook.name, known)} Hooks: {', '.join(known)}"
        for hook in hooks
        if not hook.has_spec() and not all(each.optionalhook for each in hook.get_hookimpls())
    ]


def distribution_of(entry: EntryPoint) -> tuple[str | None, str | None]:
    """Name and version of an entry point's distribution; None if its metadata do not give them."""
    try:
        return (None, None) if entry.dist is None else (entry.dist.name, entry.dist.version)
    except (KeyError, AttributeError, TypeError, OSError):  # a package whose metadata are damaged
        return None, None


def _closest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else ""
