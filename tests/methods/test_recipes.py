"""Recipes of published wholes stand for the stages, allocator and refiners that their pages name."""

import json
from pathlib import Path

import pytest

from kvfw.core.compose.composition import parse
from kvfw.errors import SpecError


@pytest.mark.parametrize(
    ("recipe", "written_out"),
    [
        ("snapkv_original", "snapkv(window=32,kernel=5,pool=avg)"),
        ("snapkv_longbench", "snapkv(window=32,kernel=7,pool=max)"),
        ("snapkv_kvpress", "snapkv(window=64,kernel=5,pool=avg)"),
        ("adakv", "snapkv(window=32,pool=max)@adakv(floor=0.2)"),
        ("adakv(window=9,floor=0.4)", "snapkv(window=9,pool=max)@adakv(floor=0.4)"),
        ("pyramidkv", "snapkv(window=8,pool=max)@pyramid(beta=20)"),
        ("prefixkv", "h2o(norm=none)@equalmass"),
        ("zigzagkv", "snapkv(window=32,pool=max)@zigzag"),
        ("simlayerkv(threshold=0.65)", "streaming@simlayer(threshold=0.65,recent=1024)"),
        ("headkv(file=t.json)", "snapkv(window=32,pool=max)@table(file=t.json,floor=0.5)"),
        ("lukv(file=t.json)", "expected(epsilon=0.02)@table(file=t.json)"),
        ("cake(tau1=1.6)", "shifting@cake(tau1=1.6)"),
        ("expected_attention", "expected(epsilon=0.01)@adakv"),
        ("h2o_original", "h2o(norm=none):0.5+streaming:0.5"),
        ("kvzip_plus", "kvzip(plus=true)@global"),
        ("streaming_llm", "streaming(positions=cache)"),
        ("duo_attention", "streaming@duo"),
        ("attention_matching", "probed(reduce=rms)|refit(ridge=0.01)"),
        ("criticaladakv", "criticalkv(scorer=snapkv(window=32,pool=max))@adakv"),
    ],
)
def test_a_recipe_is_what_it_stands_for(
    recipe: str, written_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text(json.dumps({"layers": [[1, 2]]}))
    (short,), (long,) = parse(recipe).policies, parse(written_out).policies
    assert str(short) == recipe
    assert (short.stages, short.allocator, short.refiners) == (long.stages, long.allocator, long.refiners)


def test_a_recipe_with_an_allocator_takes_no_second_one() -> None:
    with pytest.raises(SpecError, match="adakv divides the budget itself"):
        parse("adakv@global")
    assert parse("attention_matching@global").policies[0].allocator is not None
