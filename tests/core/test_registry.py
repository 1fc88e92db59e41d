"""Names to parts: one namespace for stages, helpful refusals, lazy imports, plugins that cannot hurt each other."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import kvfw.methods
from helpers.plugins import TINY
from kvfw.core.hookspecs import GROUP, KvfwHooks
from kvfw.core.options import Method, Part
from kvfw.core.parts import STAGE_KINDS, Kind, PartSpec
from kvfw.core.registry import collect, default_registry, register, unknown
from kvfw.core.spec import part_class
from kvfw.errors import RequestError, UnknownNameError

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


def test_broken_plugins_are_reported_and_stop_no_other() -> None:
    broken = [
        EntryPoint("absent", "helpers.nowhere", GROUP),
        plugin("unnamed"),
        plugin("raising"),
        plugin("half_way"),
        plugin("no_specs"),
        plugin("misspelt"),
    ]
    registry = collect([*broken, plugin("working")])
    told = {problem.split("'")[1]: problem for problem in registry.problems}
    assert sorted(told) == sorted(entry.name for entry in broken)
    assert len(registry.problems) == len(broken)
    assert "(helpers.nowhere) cannot be loaded: ModuleNotFoundError" in told["absent"]
    assert "cannot be loaded: AttributeError" in told["unnamed"]
    assert told["raising"] == "plugin 'raising' cannot list its parts: ZeroDivisionError('no parts today')"
    assert "no more parts today" in told["half_way"]
    assert "cannot list its parts: TypeError" in told["no_specs"]
    assert told["misspelt"] == (
        "plugin 'misspelt' (helpers.plugins:misspelt) implements no hook of kvfw, such as kvfw_parts"
    )
    assert set(registry.specs) == {*collect([]).specs, ("stage", "tiny")}


def test_two_entry_points_of_one_name_cannot_both_be_used() -> None:
    registry = collect([plugin("working"), plugin("working", "half_way")])
    assert len(registry.problems) == 1
    assert "plugin 'working'" in registry.problems[0]


def test_a_plugin_that_claims_a_taken_name_is_refused() -> None:
    with pytest.raises(RequestError, match="two parts claim the name 'snapkv': scorer of kvfw and method of claiming"):
        collect([plugin("claiming")])


def test_kvfw_brings_its_parts_through_the_same_hook() -> None:
    assert hasattr(kvfw.methods.kvfw_parts, f"{GROUP}_impl")
    assert hasattr(KvfwHooks.kvfw_parts, f"{GROUP}_spec")


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from kvfw.core.registry import default_registry\n"
        "names = [spec.name for spec in default_registry().specs.values()]\n"
        "assert 'snapkv' in names, names\n"
        "heavy = {'torch', 'transformers', 'numpy', 'scipy', 'pydantic', 'rich', 'kvfw.core.options'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
