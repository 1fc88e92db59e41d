"""Names to parts: one namespace for stages, helpful refusals, lazy imports, plugins that cannot hurt each other."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import kvfw.methods
from helpers.plugins import MALFORMED, TINY
from kvfw.core.compose.build import part_class
from kvfw.core.compose.composition import parse
from kvfw.core.parts.part import Method, Part
from kvfw.core.parts.spec import STAGE_KINDS, Kind, PartSpec
from kvfw.core.registry.hooks import GROUP, KvfwHooks
from kvfw.core.registry.registry import collect, default_registry, register, unknown
from kvfw.errors import RequestError, SpecError, UnknownNameError

CORE_KINDS = (*STAGE_KINDS, Kind.SELECTOR, Kind.MERGER, Kind.SPACE)
OWN = register(kvfw.methods.kvfw_parts())


def spec(kind: Kind, name: str, provider: str = "kvfw") -> PartSpec:
    return PartSpec(kind, name, "nowhere:Nothing", "for a test", provider=provider)


def plugin(name: str, attribute: str = "") -> EntryPoint:
    return EntryPoint(name, f"helpers.plugins:{attribute or name}", GROUP)


@pytest.mark.parametrize("first", STAGE_KINDS)
@pytest.mark.parametrize("second", STAGE_KINDS)
def test_stages_methods_and_scorers_share_one_namespace(first: Kind, second: Kind) -> None:
    with pytest.raises(RequestError) as caught:
        register([spec(first, "twin", "kvfw-a"), spec(second, "twin", "kvfw-b")])
    assert str(caught.value) == (
        f"two parts claim the name 'twin': {first} of kvfw-a and {second} of kvfw-b. "
        "Rename one, or uninstall the plugin you do not need"
    )


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in STAGE_KINDS])
def test_other_kinds_have_their_own(kind: Kind) -> None:
    registry = register([spec(Kind.SCORER, "twin"), spec(kind, "twin")])
    assert registry.get(kind, "twin").kind is kind
    assert registry.stage("twin").kind is Kind.SCORER
    with pytest.raises(RequestError, match="two parts claim the name 'twin'"):
        register([spec(kind, "twin"), spec(kind, "twin")])


def test_parts_are_listed_in_order_of_registration() -> None:
    names = ["b", "a", "c"]
    registry = register([spec(Kind.SPACE, name) for name in names])
    assert [found.name for found in registry.of_kind(Kind.SPACE)] == names
    assert registry.of_kind(Kind.TASK) == ()


def test_an_unknown_name_gets_the_closest_ones_and_the_list() -> None:
    with pytest.raises(UnknownNameError) as caught:
        register(spec(Kind.SCORER, name) for name in ("snapkv", "position")).get(Kind.SCORER, "snapvk")
    assert str(caught.value) == "unknown scorer 'snapvk'. Did you mean snapkv? Known: position, snapkv"
    with pytest.raises(UnknownNameError, match=r"^unknown method 'ewmeans'\. Did you mean ewmeans_pre or ewmeans_post"):
        OWN.stage("ewmeans")
    with pytest.raises(UnknownNameError, match=r"^unknown task 'niah'\. Known: none$"):
        OWN.get(Kind.TASK, "niah")
    assert unknown("method", "zzz", ["b", "a"]) == "unknown method 'zzz'. Known: a, b"


def test_a_name_of_another_kind_is_unknown() -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown scorer 'uniform'"):
        OWN.get(Kind.SCORER, "uniform")
    assert OWN.stage("uniform").kind is Kind.METHOD


@pytest.mark.parametrize(
    "found", [found for kind in CORE_KINDS for found in default_registry().of_kind(kind)], ids=lambda s: s.name
)
def test_every_part_is_what_it_is_announced_as(found: PartSpec) -> None:
    cls = part_class(found)
    assert issubclass(cls, Method if found.kind is Kind.METHOD else Part)
    assert found.name == found.name.lower()
    assert found.summary
    assert "\n" not in found.summary
    assert cls.__doc__ is not None
    assert cls.__doc__ != Part.__doc__
    assert cls.model_config["frozen"]
    assert cls.model_config["extra"] == "forbid"


def test_plugins_bring_parts_under_their_own_name() -> None:
    registry = collect([plugin("working")])
    assert registry.problems == ()
    assert registry.get(Kind.SCORER, "tiny").provider == "working"
    assert registry.get(Kind.SCORER, "tiny").target == TINY.target
    assert registry.get(Kind.SCORER, "snapkv").provider == "kvfw"


def test_own_parts_come_first_then_plugins_by_name() -> None:
    scorers = [found.provider for found in collect([plugin("working")]).of_kind(Kind.SCORER)]
    assert scorers == sorted(scorers)
    own = [found.name for found in kvfw.methods.kvfw_parts()]
    assert [name for _, name in collect([]).specs][: len(own)] == own


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            EntryPoint("absent", "helpers.nowhere", GROUP),
            "cannot be loaded from 'helpers.nowhere': ModuleNotFoundError",
        ),
        (EntryPoint("exits", "helpers.exits", GROUP), "cannot be loaded from 'helpers.exits': SystemExit('not today')"),
        (EntryPoint("garbled", "not a module", GROUP), "cannot be loaded from 'not a module'"),
        (plugin("unnamed"), "cannot be loaded from 'helpers.plugins:unnamed': AttributeError"),
        (plugin("wrong_arguments"), "cannot be loaded from 'helpers.plugins:wrong_arguments': PluginValidationError"),
        (plugin("raising"), "cannot list its parts: ZeroDivisionError('no parts today')"),
        (plugin("half_way"), "cannot list its parts: ZeroDivisionError('no more parts today')"),
        (plugin("exiting"), "cannot list its parts: SystemExit(3)"),
        (plugin("TINY"), "implements no hook of kvfw, such as kvfw_parts"),
        (plugin("misspelt"), "implements the unknown hook 'kvfw_part'. Did you mean kvfw_parts? Hooks: kvfw_parts"),
    ],
    ids=lambda value: value.name if isinstance(value, EntryPoint) else "",
)
def test_a_broken_plugin_is_reported_by_name_and_stops_no_other(entry: EntryPoint, told: str) -> None:
    registry = collect([entry, plugin("working")], {})
    (problem,) = registry.problems
    assert problem.startswith(f"plugin {entry.name!r} of unknown distribution: {told}")
    assert set(registry.specs) == {*collect([], {}).specs, ("stage", "tiny")}
    assert [found.name for found in registry.plugins if found.problems] == [entry.name]


def test_an_unknown_hook_costs_a_plugin_nothing_else() -> None:
    registry = collect([plugin("unknown_hook")], {})
    assert registry.stage("tiny").provider == "unknown_hook"
    (problem,) = registry.problems
    assert "implements the unknown hook 'kvfw_metrics'. Did you mean kvfw_parts?" in problem


def test_malformed_parts_are_told_one_by_one_and_the_others_work() -> None:
    registry = collect([plugin("malformed")], {})
    assert registry.stage("tiny").provider == "malformed"
    assert len(registry.specs) == len(collect([], {}).specs) + 1
    problems = next(found.problems for found in registry.plugins if found.name == "malformed")
    assert len(problems) == len(MALFORMED)
    for problem, (_, words) in zip(problems, MALFORMED, strict=True):
        assert words in problem
        assert "\n" not in problem


def test_a_kind_may_be_given_as_text() -> None:
    registry = collect([plugin("loose")], {})
    assert registry.problems == ()
    assert [found.name for found in registry.of_kind(Kind.SCORER)][-1] == "tiny"


def test_of_two_plugins_of_one_name_the_first_is_used() -> None:
    registry = collect([EntryPoint("working", "helpers.zzz", GROUP), plugin("working"), plugin("kvfw", "half_way")], {})
    assert registry.stage("tiny").provider == "working"
    assert registry.problems == (
        "plugin 'kvfw' of unknown distribution: is left out: kvfw 0.1.0 brings a plugin of that name, too",
        "plugin 'working' of unknown distribution: is left out: unknown distribution brings a plugin of that name, too",
    )


def test_a_built_in_part_keeps_its_name() -> None:
    registry = collect([plugin("claiming"), plugin("working")], {})
    assert registry.stage("snapkv").provider == "kvfw"
    assert registry.problems == (
        "plugin 'claiming' of unknown distribution: method 'snapkv' is left out: the scorer 'snapkv' is kvfw's own",
    )


def test_a_plugin_that_claims_a_name_twice_has_the_first() -> None:
    registry = collect([plugin("repeating")], {})
    assert registry.stage("tiny").kind is Kind.SCORER
    (problem,) = registry.problems
    assert problem.endswith("method 'tiny' is left out: the scorer 'tiny' is also its own")


def test_a_name_of_two_plugins_stands_for_neither_and_only_using_it_fails() -> None:
    registry = collect([plugin("working"), plugin("loose")], {})
    told = (
        "the name 'tiny' is claimed by scorer of plugin 'loose' (unknown distribution) and scorer of plugin 'working' "
        "(unknown distribution), so it stands for none of them. Uninstall all but one, or name the plugins to load in "
        "KVFW_PLUGINS"
    )
    for use in (registry.stage, registry.named, lambda name: registry.get(Kind.SCORER, name)):
        with pytest.raises(UnknownNameError) as caught:
            use("tiny")
        assert str(caught.value) == told
    with pytest.raises(SpecError) as wrong:
        parse("snapkv:0.5+ewmeans_pre(weight=tiny):0.5", registry)
    assert wrong.value.reason == told
    assert wrong.value.at == len("snapkv:0.5+ewmeans_pre(weight=")
    assert str(parse("snapkv:0.5+ewmeans_pre:0.5", registry)) == "snapkv:0.5+ewmeans_pre:0.5"
    assert [problem.split(": ", 1)[1] for problem in registry.problems] == [
        "scorer 'tiny' cannot be used: plugin 'working' claims the name, too",
        "scorer 'tiny' cannot be used: plugin 'loose' claims the name, too",
    ]


@pytest.mark.parametrize(
    ("value", "loaded"),
    [
        (None, ["loose", "working"]),
        ("", []),
        (" , ", []),
        ("working", ["working"]),
        (" loose , working,", ["loose", "working"]),
    ],
)
def test_a_variable_says_which_plugins_are_loaded(value: str | None, loaded: list[str]) -> None:
    registry = collect([plugin("working"), plugin("loose")], {} if value is None else {"KVFW_PLUGINS": value})
    assert [found.name for found in registry.plugins if found.wanted] == ["kvfw", *loaded]
    assert [found.name for found in registry.plugins if found.specs] == ["kvfw", *loaded]
    assert not registry.notes


def test_what_the_variable_leaves_out_is_not_even_imported() -> None:
    registry = collect([EntryPoint("exits", "helpers.exits", GROUP), plugin("working")], {"KVFW_PLUGINS": "working"})
    assert registry.problems == ()
    assert [(found.name, found.wanted) for found in registry.plugins] == [
        ("kvfw", True),
        ("exits", False),
        ("working", True),
    ]


def test_an_unknown_name_in_the_variable_is_told() -> None:
    registry = collect([plugin("working")], {"KVFW_PLUGINS": "wroking,working"})
    assert registry.problems == (
        "KVFW_PLUGINS names the plugin 'wroking', which is not installed. Did you mean working? Installed: working",
    )
    assert registry.stage("tiny").provider == "working"


def test_problems_are_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("KVFW_PLUGINS", "no_such_plugin")
    default_registry.cache_clear()
    try:
        default_registry()
        default_registry()
    finally:
        monkeypatch.undo()
        default_registry.cache_clear()
    (message,) = caplog.messages
    assert message.startswith("warning: KVFW_PLUGINS names the plugin 'no_such_plugin', which is not installed.")


def test_kvfw_brings_its_parts_through_the_same_hook() -> None:
    assert hasattr(kvfw.methods.kvfw_parts, f"{GROUP}_impl")
    assert hasattr(KvfwHooks.kvfw_parts, f"{GROUP}_spec")


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from kvfw.core.registry.registry import default_registry\n"
        "names = [spec.name for spec in default_registry().specs.values()]\n"
        "assert 'snapkv' in names, names\n"
        "heavy = {'torch', 'transformers', 'numpy', 'scipy', 'pydantic', 'rich', 'kvfw.core.parts.part'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
