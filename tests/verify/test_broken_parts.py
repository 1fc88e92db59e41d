"""Every check of the suite can fail, and says which property it is about."""

import pytest

from helpers.broken_parts import BROKEN, Broken, broken_registry
from helpers.parts import strange_registry
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import register
from kvfw.methods import kvfw_parts
from kvfw.verify.findings.property import Property
from kvfw.verify.findings.verdict import Failed
from kvfw.verify.parts import verify_part
from kvfw.verify.suite import PROPERTIES

SOUND = (
    PartSpec(Kind.SCORER, "norm", "helpers.sound_parts:Norm", "for a test"),
    PartSpec(Kind.SELECTOR, "best", "helpers.sound_parts:Best", "for a test"),
    PartSpec(Kind.MERGER, "segments", "helpers.sound_parts:Segments", "for a test"),
    PartSpec(Kind.SPACE, "unturned", "helpers.sound_parts:Unturned", "for a test"),
    PartSpec(Kind.ALLOCATOR, "spread", "helpers.sound_parts:Spread", "for a test"),
    PartSpec(Kind.REFINER, "louder", "helpers.sound_parts:Louder", "for a test"),
    PartSpec(Kind.CODEC, "bytes", "helpers.sound_parts:Bytes", "for a test"),
    PartSpec(Kind.STAGE, "keep", "helpers.sound_parts:Keep", "for a test"),
    PartSpec(Kind.STAGE, "fuse", "helpers.sound_parts:Fuse", "for a test"),
    PartSpec(Kind.TASK, "sum", "helpers.sound_parts:Sum", "for a test"),
    PartSpec(Kind.METRIC, "words", "helpers.sound_parts:Words", "for a test"),
    PartSpec(Kind.METRIC, "longest", "helpers.sound_parts:Longest", "for a test"),
    PartSpec(Kind.MODEL, "a-model", "helpers.sound_parts:folder", "for a test", facts={"licence": "MIT"}),
)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.property}-{broken.spec.name}")
def test_a_broken_part_fails_the_property_it_breaks(broken: Broken) -> None:
    report = verify_part(broken.spec.name, kind=broken.spec.kind, registry=broken_registry(), only={broken.property})
    verdicts = {finding.property.id: finding.verdict for finding in report.parts[0].findings}
    verdict = verdicts[broken.property]
    assert isinstance(verdict, Failed)
    assert broken.says in f"{verdict.expected} / {verdict.seen}"
    assert f"FAILED  {broken.property}" in str(report)
    assert not report.passed


@pytest.mark.parametrize("text", ["halves", "tailed", "listing(counts=[1,2])", "several(of=[position])"])
def test_sums_and_lists_keep_every_contract(text: str) -> None:
    report = verify_part(text, registry=strange_registry(), without={"cost"})
    assert report.passed, str(report)


@pytest.mark.parametrize("spec", SOUND, ids=lambda spec: spec.name)
def test_what_the_broken_parts_are_made_from_is_sound(spec: PartSpec) -> None:
    report = verify_part(spec.name, registry=register((*kvfw_parts(), *SOUND)), without={"cost"})
    assert report.passed, str(report)


@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda prop: prop.id)
def test_every_property_has_a_part_that_breaks_it(prop: Property) -> None:
    assert any(broken.property == prop.id and broken.spec.kind in prop.kinds for broken in BROKEN)


def test_properties_have_names_of_their_own_and_one_line() -> None:
    ids = [prop.id for prop in PROPERTIES]
    assert len(set(ids)) == len(ids)
    assert all(prop.statement and "\n" not in prop.statement and prop.kinds for prop in PROPERTIES)
