"""Every file that a part names is found, however deep the part that names it is held."""

import hashlib
import json
from pathlib import Path

from kvfw.core.compose.composition import parse
from kvfw.core.parts.files import file_digests


def test_files_of_held_parts_allocators_and_refiners(tmp_path: Path) -> None:
    probe, other, table = tmp_path / "probe.txt", tmp_path / "other.txt", tmp_path / "heads.json"
    probe.write_text("read this")
    other.write_text("and this")
    table.write_text(json.dumps({"layers": [[1, 2]]}))
    found = file_digests(parse(f"vatp(scorer=kvzip(probe={probe}))@table(file={table})|refit(probe={other})").parts)
    assert found == {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in (other, probe, table)}


def test_words_that_name_no_file() -> None:
    assert file_digests(parse("kvzip|refit").parts) == {}
    assert file_digests(parse("expected").parts) == {}
