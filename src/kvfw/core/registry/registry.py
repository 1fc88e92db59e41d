"""Maps names to parts. Filled through pluggy hooks; a part is imported only when its name is used."""

import difflib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from kvfw.core.parts.spec import STAGE_KINDS, WRITTEN, Kind, PartSpec
from kvfw.core.registry.hooks import GROUP
from kvfw.core.registry.plugins import VARIABLE, Plugin, load_plugins, own_plugin
from kvfw.errors import RequestError, UnknownNameError

Key = tuple[str, str]
_log = logging.getLogger(__name__)


def namespace(kind: Kind) -> str:
    """The namespace of a kind's names; stages, methods and scorers share one."""
    return "stage" if kind in STAGE_KINDS else kind.value


@dataclass(frozen=True)
class Registry:
    """An immutable table of parts.

    Args:
        specs: parts by (namespace, name).
        contested: parts of several plugins that claim one name, which then refers to none of them.
        plugins: where the parts come from, kvfw itself first; empty for a table made by hand.
        notes: faults in the choice of plugins, one line each.
    """

    specs: Mapping[Key, PartSpec]
    contested: Mapping[Key, tuple[PartSpec, ...]] = field(default_factory=dict)
    plugins: tuple[Plugin, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is wrong with plugins, one line each."""
        return (*self.notes, *(f"{plugin}: {problem}" for plugin in self.plugins for problem in plugin.problems))

    def of_kind(self, kind: Kind) -> tuple[PartSpec, ...]:
        """All parts of a kind, in order of registration."""
        return tuple(spec for spec in self.specs.values() if spec.kind is kind)

    def get(self, kind: Kind, name: str) -> PartSpec:
        """The part of that kind and name.

        Raises:
            UnknownNameError: the name is unknown (lists the closest names and all), or several plugins claim it.
        """
        self._refuse_contested((namespace(kind), name))
        spec = self.specs.get((namespace(kind), name))
        if spec is None or spec.kind is not kind:
            known = [spec.name for spec in self.of_kind(kind)]
            raise UnknownNameError(unknown(kind.value, name, known, self._elsewhere(name)))
        return spec

    def stage(self, name: str) -> PartSpec:
        """The stage form, method or scorer of that name; raises as :meth:`get`."""
        self._refuse_contested(("stage", name))
        spec = self.specs.get(("stage", name))
        if spec is None:
            known = [n for space, n in self.specs if space == "stage"]
            raise UnknownNameError(unknown("method", name, known, self._elsewhere(name)))
        return spec

    def no_finisher(self, name: str) -> str:
        """Message for a name after ``|`` that is neither a refiner nor a codec."""
        known = [spec.name for kind in (Kind.REFINER, Kind.CODEC) for spec in self.of_kind(kind)]
        return unknown("refiner or codec", name, known, self._elsewhere(name))

    def _elsewhere(self, name: str) -> str:
        """One sentence per part of another kind with this name: its kind and how to write it."""
        kinds = [spec.kind for spec in self.specs.values() if spec.name == name]
        return "".join(
            f" {name} is a{'n' if kind is Kind.ALLOCATOR else ''} {kind}: "
            f"{WRITTEN.get(kind, 'a stage by itself').format(name)}."
            for kind in kinds
        )

    def claimed(self, kind: Kind, name: str) -> bool:
        """Whether the name is registered for that kind or contested."""
        key = (namespace(kind), name)
        return key in self.contested or (key in self.specs and self.specs[key].kind is kind)

    def named(self, name: str) -> tuple[PartSpec, ...]:
        """All parts of that name, of any kind; raises as :meth:`get`."""
        for key in self.contested:
            if key[1] == name:
                self._refuse_contested(key)
        found = tuple(spec for spec in self.specs.values() if spec.name == name)
        if not found:
            raise UnknownNameError(unknown("part", name, {spec.name for spec in self.specs.values()}))
        return found

    def _refuse_contested(self, key: Key) -> None:
        if key in self.contested:
            claims = " and ".join(self._claim(spec) for spec in self.contested[key])
            raise UnknownNameError(
                f"the name {key[1]!r} is claimed by {claims}, so it stands for none of them. Uninstall all but one, or "
                f"name the plugins to load in {VARIABLE}"
            )

    def _claim(self, spec: PartSpec) -> str:
        origin = next((plugin.origin for plugin in self.plugins if plugin.name == spec.provider), "")
        return f"{spec.kind} of plugin {spec.provider!r}" + (f" ({origin})" if origin else "")


def unknown(what: str, name: str, known: Iterable[str], elsewhere: str = "") -> str:
    """Message for an unknown name: the closest names, where else it exists, then all names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.65)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return f"unknown {what} {name!r}.{hint}{elsewhere} Known: {', '.join(names) or 'none'}"


def register(specs: Iterable[PartSpec]) -> Registry:
    """Builds a registry; two parts with one name in one namespace raise a RequestError."""
    table: dict[Key, PartSpec] = {}
    for spec in specs:
        key = _key(spec)
        if key in table:
            other = table[key]
            raise RequestError(
                f"two parts claim the name {spec.name!r}: {other.kind} of {other.provider} and {spec.kind} of "
                f"{spec.provider}. Rename one, or uninstall the plugin you do not need"
            )
        table[key] = spec
    return Registry(table)


def collect(plugins: Iterable[EntryPoint] | None = None, environ: Mapping[str, str] = os.environ) -> Registry:
    """Collects the parts of kvfw and of every installed plugin (entry-point group ``kvfw``).

    Never fails because of a plugin: its faults are recorded in the registry and everything else works. A built-in part
    keeps its name; a name that several plugins claim refers to none of them.

    Args:
        plugins: entry points to load in place of the installed ones.
        environ: its ``KVFW_PLUGINS`` names the plugins to load, separated by commas; empty: none; unset: all.
    """
    own = own_plugin()
    entries = entry_points(group=GROUP) if plugins is None else plugins
    found, notes = load_plugins(own, entries, environ)
    table = dict(register(own.specs).specs)
    checked = [_without_taken(plugin, table) for plugin in found]
    claims: dict[Key, list[PartSpec]] = {}
    for spec in (spec for plugin in checked for spec in plugin.specs):
        claims.setdefault(_key(spec), []).append(spec)
    contested = {key: tuple(specs) for key, specs in claims.items() if len(specs) > 1}
    table.update({key: specs[0] for key, specs in claims.items() if len(specs) == 1})
    return Registry(table, contested, (own, *(_with_contests(plugin, contested) for plugin in checked)), notes)


@cache
def default_registry() -> Registry:
    """The registry of this installation, collected once per process, with faults of plugins logged as warnings.

    Without a logging configuration Python prints them to standard error.
    """
    registry = collect()
    for problem in registry.problems:
        _log.warning("warning: %s", problem)
    return registry


def _key(spec: PartSpec) -> Key:
    return namespace(spec.kind), spec.name


def _without_taken(plugin: Plugin, table: Mapping[Key, PartSpec]) -> Plugin:
    """The plugin without parts whose names are built in or already its own."""
    kept: dict[Key, PartSpec] = {}
    problems = []
    for spec in plugin.specs:
        taken = table.get(_key(spec)) or kept.get(_key(spec))
        if taken is None:
            kept[_key(spec)] = spec
        else:
            whose = "kvfw's own" if _key(spec) in table else "also its own"
            problems.append(f"{spec.kind} {spec.name!r} is left out: the {taken.kind} {taken.name!r} is {whose}")
    return replace(plugin, specs=tuple(kept.values()), problems=(*plugin.problems, *problems))


def _with_contests(plugin: Plugin, contested: Mapping[Key, tuple[PartSpec, ...]]) -> Plugin:
    """The plugin with a problem for every name that another plugin claims too."""
    problems = []
    for spec in plugin.specs:
        others = [repr(other.provider) for other in contested.get(_key(spec), ()) if other.provider != plugin.name]
        if others:
            problems.append(
                f"{spec.kind} {spec.name!r} cannot be used: plugin {' and '.join(others)} claims the name, too"
            )
    return replace(plugin, problems=(*plugin.problems, *problems))
