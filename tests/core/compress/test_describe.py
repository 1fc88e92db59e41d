"""What is said about a part comes from the part: options with defaults and rules, needs, and texts that use it."""

from dataclasses import fields
from typing import Any

import pytest

from helpers.parts import strange_registry
from kvfw.core.compress.describe import describe, needs_lines
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import collect
from kvfw.core.state.observation import Columns, Needs, References

REGISTRY = collect([])


def test_options_have_defaults_rules_and_meaning() -> None:
    window, kernel, pool, reduce = describe(REGISTRY.get(Kind.SCORER, "snapkv")).options
    assert (window.key, window.default, window.rules, window.part) == ("window", "84", (">= 1",), None)
    assert str(kernel) == "kernel=7  pooling width in tokens, odd  (>= 1)"
    assert pool.rules == ("avg or max",)
    assert reduce.rules == ("mean or max",)


def test_an_option_may_hold_a_part() -> None:
    facts = describe(REGISTRY.get(Kind.STAGE, "merge"))
    merger = facts.options[0]
    assert (merger.part, merger.default) == (Kind.MERGER, "required")
    assert str(merger) == "merger=required  a merger: turns many slots into few"
    assert facts.needs is None
    assert facts.usage == ("merge(merger=ewmeans)", "merge(merger=ewmeans,space=post,weight=snapkv,bias=none)")


@pytest.mark.parametrize(
    ("kind", "name", "usage"),
    [
        (Kind.SCORER, "position", ("position",)),
        (Kind.SELECTOR, "evenly", ("select(scorer=snapkv,selector=evenly)",)),
        (Kind.ALLOCATOR, "table", ("snapkv@table(file=heads.json)", "snapkv@table(file=heads.json,floor=0)")),
        (Kind.SPACE, "pre", ("merge(merger=ewmeans,space=pre)",)),
        (
            Kind.TASK,
            "niah",
            (
                '--task "niah"',
                '--task "niah(contexts=[1024],depths=[10,30,50,70,90],seeds=1,haystack=none,begin_answer=true)"',
            ),
        ),
        (Kind.METRIC, "kv_mb", ()),
        (Kind.MODEL, "smollm2-135m", ("--model smollm2-135m",)),
        (Kind.MODEL, "minilm-l6", ()),
    ],
)
def test_usage_says_what_to_write(kind: Kind, name: str, usage: tuple[str, ...]) -> None:
    assert describe(REGISTRY.get(kind, name)).usage == usage


def test_needs_are_phrases() -> None:
    assert needs_lines(Needs()) == ()
    assert needs_lines(Needs(queries=8, column_sums=frozenset({0, 5}), lexical=True)) == (
        "the last 8 queries",
        "exact column sums of attention",
        "exact column sums of attention from at least 5 tokens away",
        "lexical features of the prompt's text",
    )
    assert needs_lines(Needs(queries="all", projection=True, ids=True, token_types=True)) == (
        "all queries",
        "the weight of the output projection",
        "the prompt's token ids",
        "classes of the prompt's tokens (special, punctuation, image)",
    )
    assert needs_lines(Needs(moments=frozenset({0, 4}))) == (
        "mean and covariance of the queries before RoPE",
        "mean and covariance of the queries before RoPE, without the first 4",
    )
    assert describe(REGISTRY.get(Kind.METHOD, "streaming")).needs == ()
    assert describe(REGISTRY.get(Kind.SELECTOR, "topk")).needs is None


def test_columns_references_and_probes_are_phrases() -> None:
    columns = frozenset({Columns(), Columns(3, "max", "each", per_norm=True, source="repeat")})
    assert needs_lines(Needs(columns=columns)) == (
        "the maximum of the attention received from the queries of the probe repeat from at least 3 tokens away by "
        "each query head, over the norm of the query's hidden state",
        "the sum of the attention received from the queries of the prompt",
        "a forward more: it repeats the prompt",
    )
    references = frozenset({References(9), References(8), References(8, "a.txt")})
    assert needs_lines(Needs(references=references)) == (
        "at most 8 reference queries of the probe a.txt",
        "at most 8 reference queries of the prompt",
        "at most 9 reference queries of the prompt",
        "a forward more: it reads a.txt",
    )


def test_every_need_has_its_words() -> None:
    asked: dict[str, Any] = {"queries": 3, "lexical": True, "projection": True, "ids": True, "token_types": True}
    asked |= {"column_sums": frozenset({0}), "moments": frozenset({0}), "columns": frozenset({Columns()})}
    asked |= {"references": frozenset({References(5)})}
    assert asked.keys() == {field.name for field in fields(Needs)}
    told = [needs_lines(Needs(**{name: value})) for name, value in asked.items()]
    assert all(len(lines) == 1 for lines in told)
    assert len(set(told)) == len(told)


def test_allocators_and_refiners_say_what_they_look_at() -> None:
    assert describe(REGISTRY.get(Kind.ALLOCATOR, "cake")).needs == ("the last 32 queries",)
    assert describe(REGISTRY.get(Kind.ALLOCATOR, "pyramid")).needs == ()
    assert describe(REGISTRY.get(Kind.ALLOCATOR, "table")).needs is None
    assert describe(REGISTRY.get(Kind.REFINER, "refit")).needs == (
        "at most 1024 reference queries of the probe repeat",
        "a forward more: it repeats the prompt",
    )


def test_a_recipe_that_is_a_sum_needs_what_its_stages_need() -> None:
    registry = strange_registry()
    facts = describe(registry.get(Kind.METHOD, "tailed"), registry)
    assert facts.needs == ("the last 5 queries",)
    assert facts.recipe is not None
    assert facts.recipe.startswith("halves(by=$by):0.6+")
    assert facts.usage == ("tailed", "tailed(by=snapkv(window=5),iters=3,block=none)")


def test_lists_are_spelt_out() -> None:
    registry = strange_registry()
    assert describe(registry.get(Kind.SCORER, "lists"), registry).usage[-1] == (
        "lists(counts=[],at=[10,50.5],words=[vt],some=none)"
    )


def test_metrics_say_how_they_are_judged() -> None:
    notes = dict(describe(REGISTRY.get(Kind.METRIC, "ref_ppl")).notes)
    assert notes == {"heading": "Ref PPL", "unit": "none", "direction": "lower is better"}
    assert dict(describe(REGISTRY.get(Kind.METRIC, "self_ppl")).notes)["direction"] == "neither direction is better"
