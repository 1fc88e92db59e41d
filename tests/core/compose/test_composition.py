"""The grammar, the checks against the registry, and the canonical text."""

import random
from dataclasses import FrozenInstanceError
from fractions import Fraction
from types import NoneType
from typing import Literal, get_args, get_origin

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pydantic.fields import FieldInfo

from helpers.parts import Lists, Several, one_stage, stage_of, strange_registry
from kvfw.core.compose.build import build_part, part_class
from kvfw.core.compose.composition import StageShare, parse
from kvfw.core.compose.syntax import OptionNode, PartNode, StageNode, parse_part, parse_policies
from kvfw.core.compress.stages import Merge, Select
from kvfw.core.parts.part import default_text, part_option
from kvfw.core.parts.spec import STAGE_KINDS, Kind
from kvfw.core.registry.registry import default_registry
from kvfw.errors import RequestError, SpecError
from kvfw.methods.allocators.adakv import AdaKV
from kvfw.methods.allocators.global_threshold import GlobalThreshold
from kvfw.methods.codecs.kivi import Kivi
from kvfw.methods.mergers.ewmeans import EWMeans
from kvfw.methods.refiners.refit import Refit
from kvfw.methods.scorers.h2o import H2O
from kvfw.methods.scorers.position import Position
from kvfw.methods.scorers.snapkv import SnapKV
from kvfw.methods.selectors.evenly import Evenly
from kvfw.methods.selectors.topk import TopK
from kvfw.methods.spaces.post import Post
from kvfw.methods.spaces.pre import Pre

GOLDEN = [
    ("snapkv", "snapkv"),
    ("snapkv:1", "snapkv"),
    ("snapkv:1.0", "snapkv"),
    ("snapkv:0.8+ewmeans_pre:0.2", "snapkv:0.8+ewmeans_pre:0.2"),
    ("snapkv:.80 + ewmeans_pre:0.20", "snapkv:0.8+ewmeans_pre:0.2"),
    ("snapkv:4/5+ewmeans_pre:1/5", "snapkv:0.8+ewmeans_pre:0.2"),
    ("snapkv:1/3+uniform:1/3+streaming:1/3", "snapkv:1/3+uniform:1/3+streaming:1/3"),
    ("snapkv:2/6+uniform:4/6", "snapkv:1/3+uniform:2/3"),
    ("  snapkv  (  window = 64 , pool = max )  ", "snapkv(window=64,pool=max)"),
    ("snapkv(pool=max,window=64)", "snapkv(window=64,pool=max)"),
    ("snapkv(window=84,kernel=7,pool=avg)", "snapkv"),
    ("snapkv(kernel=5,window=84)", "snapkv(kernel=5)"),
    ("snapkv(window=064)", "snapkv(window=64)"),
    ("streaming(positions=original)", "streaming"),
    ("streaming(positions=cache)", "streaming(positions=cache)"),
    ("ewmeans_pre(weight=snapkv)", "ewmeans_pre"),
    ("ewmeans_pre(weight=snapkv(window=84))", "ewmeans_pre"),
    ("ewmeans_pre(weight=snapkv(pool=max))", "ewmeans_pre(weight=snapkv(pool=max))"),
    ("ewmeans_pre(block=none,bias=none)", "ewmeans_pre"),
    ("ewmeans_post(block=512,bias=log,iters=3)", "ewmeans_post(iters=3,bias=log,block=512)"),
    ("select(scorer=position)", "select(scorer=position)"),
    ("select(selector=topk,scorer=position)", "select(scorer=position)"),
    ("select(selector=evenly,scorer=position)", "select(scorer=position,selector=evenly)"),
    (
        "merge(space=pre,weight=position,merger=ewmeans(block=8,iters=8))",
        "merge(merger=ewmeans(block=8),space=pre,weight=position)",
    ),
    ("merge(merger=ewmeans,space=post)", "merge(merger=ewmeans)"),
]


@pytest.mark.parametrize(("text", "canonical"), GOLDEN)
def test_canonical_text(text: str, canonical: str) -> None:
    composition = parse(text)
    assert str(composition) == canonical
    assert parse(canonical) == composition
    assert sum(stage.share for stage in composition.stages) == 1


# The mark ¦ stands before the character that the caret must point at.
FAULTS = [
    # syntax
    ("¦", "expected the name of a part, found the end"),
    ("   ¦", "expected the name of a part, found the end"),
    ("¦+snapkv", "expected the name of a part, found '+'"),
    ("snapkv:0.5+¦", "expected the name of a part, found the end"),
    ("¦7snap", "expected the name of a part, found '7'"),
    ("snapkv ¦uniform", "unexpected 'u'; stages are joined by '+', a share follows ':'"),
    ("snapkv:0.5¦x", "unexpected 'x'"),
    ("snapkv:0.5¦:0.5", "unexpected ':'"),
    ("snapkv¦)", "unexpected ')'"),
    ("snapkv(window=3)¦)", "unexpected ')'"),
    ("snapkv(¦", "expected the name of an option, found the end"),
    ("snapkv(¦)", "expected the name of an option, found ')'"),
    ("snapkv(window=3,¦)", "expected the name of an option, found ')'"),
    ("snapkv(window=3¦", "expected ',' or ')' after an option"),
    ("snapkv(window=3 ¦kernel=5)", "expected ',' or ')' after an option"),
    ("ewmeans_pre(weight=snapkv(window=3)¦", "expected ',' or ')' after an option"),
    ("snapkv(window¦)", "expected '=' after option 'window'"),
    ("snapkv(window=¦)", "expected a value for option 'window', found ')'"),
    ("snapkv(window=3, ¦window=3)", "option 'window' is given twice"),
    # shares
    ("snapkv:¦", "expected a share such as 0.8 or 1/3, found the end"),
    ("snapkv:¦-1", "expected a share such as 0.8 or 1/3, found '-'"),
    ("snapkv:¦half", "expected a share"),
    ("snapkv: ¦0", "share 0 is not above 0 and at most 1"),
    ("snapkv:¦1.5", "share 1.5 is not above 0 and at most 1"),
    ("snapkv:¦3/2", "share 3/2 is not above 0 and at most 1"),
    ("snapkv:¦1/0", "share 1/0 divides by zero"),
    ("snapkv:¦0.9", "shares must sum to 1; 0.9 = 0.9"),
    ("snapkv:0.8+uniform:¦0.3", "shares must sum to 1; 0.8 + 0.3 = 1.1"),
    ("snapkv:0.8+uniform:¦0.2000001", "shares must sum to 1; 0.8 + 0.2000001 = 1.0000001"),
    ("snapkv:1/3+uniform:¦0.5", "shares must sum to 1; 1/3 + 0.5 = 5/6"),
    ("snapkv:0.8+uniform¦", "stage 'uniform' needs a share, such as uniform:0.5"),
    ("snapkv¦+uniform:0.2", "stage 'snapkv' needs a share, such as snapkv:0.5"),
    # names
    ("¦snapkw", "unknown method 'snapkw'. Did you mean snapkv? Known: "),
    ("snapkv:0.5+ ¦uniforn:0.5", "unknown method 'uniforn'. Did you mean uniform?"),
    ("¦topk", "topk is a selector: select(scorer=...,selector=topk)"),
    ("snapkv:0.5+¦ewmeans:0.5", "ewmeans is a merger: merge(merger=ewmeans)"),
    ("¦pre", "pre is a space: merge(merger=...,space=pre)"),
    ("¦niah", 'niah is a task: --task "niah"'),
    ("¦kv_mb", "kv_mb is a metric: every run measures it"),
    ("ewmeans_pre(weight=¦snapkw)", "unknown scorer 'snapkw'. Did you mean snapkv? Known: "),
    ("ewmeans_pre(weight=¦uniform)", "unknown scorer 'uniform'"),
    ("select(scorer=position,selector=¦evenli)", "unknown selector 'evenli'. Did you mean evenly?"),
    ("select(scorer=¦snapkw(window=3))", "unknown scorer 'snapkw'"),
    # options
    ("snapkv(¦windw=3)", "snapkv has no option 'windw'; its options and defaults are window=84, kernel=7, pool=avg"),
    ("uniform(¦x=1)", "uniform has no option 'x'; it has no options"),
    ("select(¦scorr=position)", "its options and defaults are scorer=required, selector=topk, positions=original"),
    ("ewmeans_pre(weight=snapkv(window=3,¦kernl=4))", "snapkv has no option 'kernl'"),
    ("snapkv(window=¦many)", "option 'window' of snapkv is 'many': "),
    ("snapkv(window=¦1.5)", "option 'window' of snapkv is '1.5': "),
    ("snapkv(window=¦none)", "option 'window' of snapkv is 'none': "),
    ("snapkv(window=¦0)", "option 'window' of snapkv is '0': Input should be greater than or equal to 1"),
    ("snapkv(pool=¦mean)", "option 'pool' of snapkv is 'mean': Input should be 'avg' or 'max'"),
    ("snapkv(window=9,kernel=¦6)", "the pooling kernel must be odd; use 5 or 7"),
    ("ewmeans_pre(weight=snapkv(kernel=¦4))", "the pooling kernel must be odd; use 3 or 5"),
    ("ewmeans_pre(block=¦0)", "option 'block' of ewmeans_pre is '0': "),
    ("snapkv(window=¦snapkv(kernel=3))", "option 'window' of snapkv takes a plain value, not a part"),
    ("ewmeans_pre(weight=¦5)", "option 'weight' takes the name of a scorer"),
    ("select(scorer=position,selector= ¦0.5)", "option 'selector' takes the name of a selector"),
    ("¦select", "select needs a scorer as an option"),
    ("snapkv:0.5+¦merge(space=pre):0.5", "merge needs a merger as an option"),
    # lists
    ("snapkv(window=[3,¦)", "expected a value of the list, found ')'"),
    ("snapkv(window=[3¦)", "expected ',' or ']' after a value of a list"),
    ("snapkv(window=[3,¦,4])", "expected a value of the list, found ','"),
    ("snapkv(window=¦[3])", "option 'window' of snapkv is '[3]': it takes one value, not a list"),
    ("ewmeans_pre(weight=¦[snapkv])", "option 'weight' takes the name of a scorer"),
    # places of options are for recipes
    ("snapkv(window=¦$window)", "there is no option 'window'"),
    ("¦$by", "there is no option 'by'"),
    # order
    (
        "ewmeans_pre:0.2+¦snapkv:0.8",
        "stage 'ewmeans_pre' merges all that is left, so nothing can follow it; put it last",
    ),
    ("ewmeans_pre:0.2+ ¦ewmeans_post:0.8", "put it last"),
    ("merge(merger=ewmeans):0.2+¦snapkv:0.8", "stage 'merge' merges all that is left"),
]


@pytest.mark.parametrize(("marked", "reason"), FAULTS)
def test_the_caret_points_at_the_fault(marked: str, reason: str) -> None:
    at = marked.index("¦")
    text = marked.replace("¦", "")
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert reason in caught.value.reason
    assert caught.value.at == at
    assert str(caught.value).splitlines()[-2:] == [f"  {text}", f"  {' ' * at}^"]


def bounds_of(info: FieldInfo) -> tuple[float, float]:
    """A range of numbers that a float option takes."""
    limits = {name: getattr(m, name) for m in info.metadata for name in ("ge", "gt", "le", "lt") if hasattr(m, name)}
    low = limits.get("ge", limits.get("gt", 0.0) + ("gt" in limits))
    return (low, limits["le"]) if "le" in limits else (low, 1e6)


@st.composite
def part_texts(draw: st.DrawFn, kind: Kind, name: str) -> str:
    """A part with some of its options, in any order, with spaces here and there."""

    def space() -> str:
        return draw(st.sampled_from(["", "", " "]))

    registry = default_registry()
    options = []
    for key, info in part_class(registry.get(kind, name)).model_fields.items():
        mark = part_option(info)
        if not info.is_required() and not draw(st.booleans()):
            continue
        if mark is not None:
            if mark.default is not None and not draw(st.booleans()):
                continue
            inner = draw(st.sampled_from([spec.name for spec in registry.of_kind(mark.kind)]))
            value = draw(part_texts(mark.kind, inner))
        elif info.annotation is bool:
            value = draw(st.sampled_from(["true", "false"]))
        elif info.annotation is str:
            value = "repeat"  # the only text that needs no file
        elif str in get_args(info.annotation):
            value = "none"  # a calibration file
        elif get_origin(info.annotation) is Literal:
            value = draw(st.sampled_from(get_args(info.annotation)))
        elif info.annotation is float:
            low, high = bounds_of(info)
            value = repr(draw(st.floats(low, high)))
        else:
            assert int in {info.annotation, *get_args(info.annotation)}, f"teach this test about {info}"
            least = max((m.ge for m in info.metadata if hasattr(m, "ge")), default=0)
            numbers = st.integers(least // 2, 60).map(lambda n: str(2 * n + 1))
            value = draw(st.just("none") | numbers if NoneType in get_args(info.annotation) else numbers)
        options.append(f"{space()}{key}{space()}={space()}{value}{space()}")
    draw(st.randoms(use_true_random=False)).shuffle(options)
    return f"{space()}{name}{space()}" + (f"({','.join(options)})" if options else "")


STAGES = [
    (spec.kind, spec.name) for kind in STAGE_KINDS for spec in default_registry().of_kind(kind) if one_stage(spec)
]


@st.composite
def compositions(draw: st.DrawFn) -> str:
    texts = [
        draw(part_texts(kind, name)) for kind, name in draw(st.lists(st.sampled_from(STAGES), min_size=1, max_size=4))
    ]
    # A merge can only come last.
    selecting = [text for text in texts if not stage_of(text).consumes_rest]
    merging = [text for text in texts if stage_of(text).consumes_rest][:1]
    stages = selecting + merging
    weights = draw(st.lists(st.integers(1, 12), min_size=len(stages), max_size=len(stages)))
    return "+".join(f"{stage}:{weight}/{sum(weights)}" for stage, weight in zip(stages, weights, strict=True))


def check_canonical(node: PartNode, kind: Kind) -> None:
    fields = part_class(default_registry().get(kind, node.name)).model_fields
    keys = [option.key for option in node.options]
    assert keys == [key for key in fields if key in keys], "declared order"
    for option in node.options:
        mark = part_option(fields[option.key])
        if mark is not None:
            assert isinstance(option.value, PartNode)
            check_canonical(option.value, mark.kind)
        else:
            assert str(option.value) != default_text(fields[option.key]), "a default was printed"


@settings(max_examples=60, deadline=None)
@given(compositions())
def test_every_composition_prints_back(text: str) -> None:
    composition = parse(text)
    canonical = str(composition)
    assert parse(canonical) == composition
    assert str(parse(canonical)) == canonical
    assert " " not in canonical
    for term in composition.terms:
        node = parse_part(term.text)
        check_canonical(node, default_registry().stage(node.name).kind)
        assert stage_of(term.text) == stage_of(build_text(node, random.Random(canonical)))


def build_text(node: PartNode, order: random.Random) -> str:
    """A part's text with its options in another order."""
    options = [
        f"{option.key}={build_text(option.value, order) if isinstance(option.value, PartNode) else option.value}"
        for option in node.options
    ]
    order.shuffle(options)
    return node.name + (f"({','.join(options)})" if options else "")


def test_the_syntax_tree_remembers_places() -> None:
    text = "snapkv(window=64, pool = max):0.8 + merge(merger=ewmeans(iters=2)):1/5"
    first, second = parse_policies(text)[0].stages
    inner = PartNode(
        "ewmeans",
        (OptionNode("iters", PartNode("2", (), text.index("2)")), text.index("iters")),),
        text.index("ewmeans"),
    )
    assert first == StageNode(
        PartNode(
            "snapkv",
            (
                OptionNode("window", PartNode("64", (), text.index("64")), text.index("window")),
                OptionNode("pool", PartNode("max", (), text.index("max")), text.index("pool")),
            ),
            0,
        ),
        Fraction(4, 5),
        text.index("0.8"),
    )
    assert second.part == PartNode(
        "merge",
        (OptionNode("merger", inner, text.index("merger=")),),
        text.index("merge("),
    )


@pytest.mark.parametrize("value", ["-3", "1e-5", "-2.5E+7", "0.25", "a/b", "x-1", "3rd", "v1.2"])
def test_scalars_are_taken_whole(value: str) -> None:
    (option,) = parse_part(f"part(key={value})").options
    assert option.value == PartNode(value, (), len("part(key="))


def test_methods_are_recipes() -> None:
    assert stage_of("ewmeans_pre(iters=3,block=16,bias=log,weight=position)") == Merge(
        merger=EWMeans(iters=3, block=16), space=Pre(), weight=Position(), bias="log"
    )
    assert stage_of("streaming(positions=cache)") == Select(scorer=Position(), selector=TopK(), positions="cache")
    assert stage_of("snapkv(kernel=3)") == Select(scorer=SnapKV(kernel=3), selector=TopK())
    assert stage_of("uniform") == stage_of("select(scorer=position,selector=evenly)")
    assert build_part(Kind.SCORER, "snapkv(window=9)").value == SnapKV(window=9)


def test_parts_and_compositions_are_immutable() -> None:
    composition = parse("snapkv(window=84)")
    assert composition == parse("snapkv")
    assert hash(composition) == hash(parse("snapkv"))
    assert composition != parse("snapkv(window=85)")
    for frozen, name in ((SnapKV(), "window"), (stage_of("snapkv"), "scorer")):
        with pytest.raises(ValueError, match="frozen"):
            setattr(frozen, name, None)
    for fixed, name in ((composition, "terms"), (composition.terms[0], "parts"), (composition.stages[0], "share")):
        with pytest.raises(FrozenInstanceError):
            setattr(fixed, name, None)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("options(strength=10)", "options"),
        ("options(strength=10.0)", "options"),
        ("options(strength=2.50)", "options(strength=2.5)"),
        ("options(strength=3)", "options(strength=3)"),
        ("options(strength=1e-5)", "options(strength=1e-05)"),
        ("options(strength=1e300)", "options(strength=1e+300)"),
        ("options(flag=false)", "options"),
        ("options(flag=yes)", "options(flag=true)"),
        ("options(norm=none,local=none)", "options(norm=none)"),
        ("options(local=5)", "options(local=5)"),
        ("nested(by=snapkv(window=5))", "nested"),
        ("nested(by=snapkv)", "nested(by=snapkv)"),
        ("nested(by=options(strength=10))", "nested(by=options)"),
        ("required(steps=3)", "required(steps=3)"),
        ("lists(counts=[],at=[10.0,50.50],words=[vt])", "lists"),
        ("lists( counts = [ 3 , 04 ] )", "lists(counts=[3,4])"),
        ("lists(at=[0.5],words=[cwe,vt],some=[1])", "lists(at=[0.5],words=[cwe,vt],some=[1])"),
        ("lists(words=[])", "lists(words=[])"),
        ("lists(some=none)", "lists"),
        ("several(of=[snapkv,position])", "several"),
        ("several(of=[snapkv(window=84),h2o])", "several(of=[snapkv,h2o])"),
        ("halves(by=snapkv(window=5))", "halves"),
        ("halves:0.5+tailed(by=position,iters=4):0.5", "halves:0.5+tailed(by=position,iters=4):0.5"),
    ],
)
def test_options_of_strangers(text: str, canonical: str) -> None:
    registry = strange_registry()
    composition = parse(text, registry)
    assert str(composition) == canonical
    assert parse(canonical, registry) == composition
    assert parse(canonical, registry).stages == composition.stages


@pytest.mark.parametrize(
    ("marked", "reason"),
    [
        ("options(strength=¦nan)", "finite"),
        ("options(strength=¦inf)", "finite"),
        ("options(flag=¦maybe)", "option 'flag' of options is 'maybe'"),
        ("options(flag=¦none)", "option 'flag' of options is 'none'"),
        ("snapkv:0.5+¦required:0.5", "required needs option 'steps'"),
        ("options(¦stength=1)", "strength=10, flag=false, norm=count, local=none"),
        ("lists(counts=¦1024)", "option 'counts' of lists is '1024': it takes a list; write [1024]"),
        ("lists(some=¦7)", "it takes a list; write [7]"),
        ("lists(counts=[1024,¦many])", "option 'counts' of lists has 'many': Input should be a valid integer"),
        ("lists(some=[1, ¦x])", "option 'some' of lists has 'x'"),
        ("lists(counts=[1,¦[2]])", "option 'counts' of lists has '[2]'"),
        ("lists(at=¦[])", "option 'at' of lists is '[]': Tuple should have at least 1 item"),
        ("lists(counts=[1,¦snapkv(window=2)])", "takes a plain value, not a part"),
        ("several(of=¦snapkv)", "option 'of' takes a list; write [snapkv]"),
        ("several(of=[snapkv,¦topk])", "unknown scorer 'topk'. topk is a selector: select(scorer=...,selector=topk)"),
        ("several(of=[snapkv(¦windw=3)])", "snapkv has no option 'windw'"),
        ("select(scorer=¦halves)", "halves is a method: a stage by itself. Known: "),
        ("tailed:0.5+ ¦uniform:0.5", "stage 'tailed' merges all that is left, so nothing can follow it; put it last"),
        (
            "snapkv:0.5+¦whole:0.5",
            "whole stands for a whole policy ($by@adakv(floor=$floor)|refit), so it cannot be a term of a sum",
        ),
        ("¦again:0.5+snapkv:0.5", "again stands for a whole policy (whole(floor=0.25))"),
        (
            "whole@¦global",
            "whole divides the budget itself ($by@adakv(floor=$floor)|refit); leave out @global",
        ),
        ("[0]full;[1-]again|refit;[2]again @ ¦adakv(floor=0.1)", "leave out @adakv(floor=0.1)"),
        (
            "[0]full;[1-]¦whole(by=knorm)",
            "|refit: adakv compares scores of different heads, and those of KNorm have no",
        ),
    ],
)
def test_options_of_strangers_are_checked(marked: str, reason: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(marked.replace("¦", ""), strange_registry())
    assert reason in caught.value.reason
    assert caught.value.at == marked.index("¦")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("absent", "scorer 'absent' of stranger cannot be imported: No module named 'helpers.nowhere'"),
        (
            "unnamed",
            "scorer 'unnamed' of stranger cannot be imported: module 'helpers.parts' has no attribute 'Absent'",
        ),
        ("no_part", "scorer 'no_part' of stranger: helpers.parts:STRANGERS is not a subclass of kvfw.Part"),
        (
            "broken_recipe",
            "the recipe of method 'broken_recipe' (stranger) does not work: there is no option 'by'\n"
            "  select(scorer=$by)\n"
            "                ^",
        ),
        ("tail_in_front", "the recipe of method 'tail_in_front' (stranger) does not work: stage 'tailed' merges all"),
        (
            "mixes_policies",
            "the recipe of method 'mixes_policies' (stranger) does not work: whole stands for a whole policy",
        ),
        ("names_layers", "does not work: a recipe is one policy for all layers; leave out layers"),
        ("full_recipe", "does not work: a recipe stands for stages, and full is none"),
        ("circle", "does not work: maximum recursion depth exceeded"),
    ],
)
def test_broken_parts_of_strangers_are_named(text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(text, strange_registry())
    assert message in str(caught.value)


def test_a_recipe_may_be_a_sum_whose_shares_multiply() -> None:
    registry = strange_registry()
    stages = parse("uniform:0.4+tailed(by=position,iters=2,block=9):0.6", registry).stages
    by = Position()
    assert stages == (
        StageShare(stage_of("uniform"), Fraction(2, 5)),
        StageShare(Select(scorer=by, selector=TopK()), Fraction(3, 25)),
        StageShare(Select(scorer=by, selector=Evenly()), Fraction(6, 25)),
        StageShare(Merge(merger=EWMeans(iters=2, block=9), space=Post(), weight=by, bias="log"), Fraction(6, 25)),
    )
    assert sum(each.share for each in stages) == 1


def test_a_recipe_may_be_a_policy_with_allocator_and_refiners() -> None:
    registry = strange_registry()
    (whole,) = parse("whole(by=h2o,floor=0.1)", registry).policies
    (spelt,) = parse("h2o@adakv(floor=0.1)|refit", registry).policies
    assert str(whole) == "whole(by=h2o,floor=0.1)"
    assert whole.stages == spelt.stages
    assert whole.allocator == AdaKV(floor=0.1)
    assert whole.refiners == spelt.refiners
    more = parse("[0]full;[1-]again|refit(ridge=0.5)", registry)
    assert str(more) == "[0]full;[1-]again|refit(ridge=0.5)"
    assert parse(str(more), registry) == more
    assert more.policies[1].allocator == AdaKV(floor=0.25)
    assert more.policies[1].refiners == (Refit(), Refit(ridge=0.5))
    with pytest.raises(SpecError, match="names its own allocator"):
        parse("whole", registry).allocated_by(GlobalThreshold())


def test_recipes_get_the_built_option_itself() -> None:
    """Not one of its kind that was built again from its text."""
    (term,) = parse("tailed(by=snapkv(window=9))", strange_registry()).terms
    first, second, last = (each.stage for each in term.parts)
    assert isinstance(first, Select)
    assert isinstance(second, Select)
    assert isinstance(last, Merge)
    assert first.scorer is second.scorer is last.weight


def test_recipes_hand_on_lists() -> None:
    stages = parse("listing(of=[h2o])", strange_registry()).stages
    held = [each.stage.scorer for each in stages if isinstance(each.stage, Select)]
    assert held == [Several(of=(H2O(),)), Lists(counts=(3, 4), at=(2, 2.5))]


def test_a_codec_comes_last_and_full_may_have_one() -> None:
    composition = parse(" full | kivi ( bits = 4 ) ")
    assert str(composition) == "full|kivi(bits=4)"
    (policy,) = composition.by_layer(1)
    assert policy.codec is not None
    assert policy.codec.value == Kivi(bits=4)
    assert composition.parts == (Kivi(bits=4),)
    text = "[0-1]full|kivi;[2-]snapkv@adakv|refit|turbo(bits=3)"
    assert str(parse(text)) == text
    assert parse(text.replace("kivi", "kivi(bits=2)")) == parse(text)
    assert not parse("snapkv|kivi").policies[0].is_sum


def test_a_recipe_may_end_in_a_codec() -> None:
    registry = strange_registry()
    (thin,) = parse("thin(bits=4)", registry).policies
    assert str(thin) == "thin(bits=4)"
    assert thin.codec is not None
    assert thin.codec.text == "kivi(bits=4)"
    with pytest.raises(SpecError, match=r"\$by\|kivi\(bits=\$bits\) ends in a codec") as caught:
        parse("thin|kivi", registry)
    assert caught.value.at == 5


def test_policies_differ_by_what_they_say_not_by_where_it_stands() -> None:
    assert parse("[0-1] full ; [2-]snapkv") == parse("[0-1]full;[2-]snapkv")
    assert str(parse(" [ 0 - 1 ]full;[2-]snapkv @ adakv | refit".replace(" - ", "-"))) == (
        "[0-1]full;[2-]snapkv@adakv|refit"
    )
    assert [policy.terms for policy in parse("[odd]snapkv;[even]full").by_layer(3)] == [
        (),
        parse("snapkv").terms,
        (),
    ]


@pytest.mark.parametrize(
    ("marked", "reason", "depth"),
    [
        ("[¦0-99]snapkv", "layers 0-99: the model has 30 layers, 0 to 29", 30),
        ("[0-3]full;[¦3-]snapkv", "layer 3 is in two policies", 30),
        ("[0-3]full;[5-]snapkv¦", r"layers 4 of 30 are in no policy; add ;[4]full", 30),
        ("¦[0-]full", "every layer is full", 3),
        ("[¦3-1]snapkv", "write 1-3", 30),
        ("[-1¦-3]snapkv", "expected ','", 30),
        ("snapkv@¦nope", "unknown allocator 'nope'", 30),
        ("snapkv@adakv(floor=¦2)", "less than or equal to 1", 30),
        ("knorm@¦global", "have no common unit", 30),
        ("[0-3]full;¦snapkv", "each needs its layers", 30),
        ("snapkv|kivi|¦refit", "kivi is a codec, which codes the finished slots, so nothing can follow it", 30),
        ("snapkv|kivi|¦turbo", "nothing can follow it", 30),
        ("snapkv|¦kivy", "unknown refiner or codec 'kivy'. Did you mean kivi? Known: kivi, refit, think, turbo", 30),
        ("snapkv|¦adakv", "adakv is an allocator: snapkv@adakv.", 30),
        ("snapkv|kivi(bits=¦3)", "option 'bits' of kivi is '3'", 30),
        ("snapkv|kivi¦~quest", "a refiner or codec '|'", 30),
        ("¦kivi", "kivi is a codec: snapkv|kivi", 30),
        ("full|¦refit", "full keeps every slot as it is, so there is nothing to refine", 30),
        ("[0]snapkv;[1-]full|¦refit|kivi", "there is nothing to refine", 30),
        ("[0]full¦@adakv", "unexpected '@'", 30),
        ("¦full:0.5+snapkv:0.5", "unknown method 'full'", 30),
        ("¦full", "unknown method 'full'", 30),
    ],
)
def test_wrong_policies_and_allocators_get_a_caret(marked: str, reason: str, depth: int) -> None:
    text, at = marked.replace("¦", ""), marked.index("¦")
    with pytest.raises(SpecError) as caught:
        parse(text).by_layer(depth)
    assert reason in caught.value.reason
    assert caught.value.at == at


def test_an_allocator_made_by_hand_needs_a_common_unit_too() -> None:
    with pytest.raises(SpecError, match="no common unit"):
        parse("knorm").allocated_by(GlobalThreshold())
    with pytest.raises(SpecError, match="names its own allocator"):
        parse("snapkv@adakv").allocated_by(GlobalThreshold())
    full, rest = parse("[0]full;[1-]snapkv").allocated_by(GlobalThreshold()).policies
    assert full.allocator is None
    assert rest.allocator == GlobalThreshold()


def test_names_of_files_may_begin_with_a_digit() -> None:
    (option,) = parse_part("table(file=32-heads.json)").options
    assert str(option.value) == "32-heads.json"
