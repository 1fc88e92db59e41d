"""Several versions of the documentation side by side, and a page that lists them.

A version is built into a folder of its name, such as ``html/0.1.0``; ``html/index.html`` lists every such folder, the
newest first. To publish a version, build it beside those that are published already.
"""

from html import escape
from pathlib import Path

from packaging.version import InvalidVersion, Version
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{project}: versions of the documentation</title>
<h1>{project}: versions of the documentation</h1>
<ul>
{items}
</ul>
</html>
"""


def built_versions(folder: Path) -> list[str]:
    """Names of the folders that hold a built version, the newest first."""
    found = []
    for index in folder.glob("*/objects.inv"):
        try:
            found.append((Version(index.parent.name), index.parent.name))
        except InvalidVersion:
            continue
    return [name for _, name in sorted(found, reverse=True)]


def write_list(app: Sphinx, error: Exception | None) -> None:
    """Writes the list where the folder that was built into is named by the version."""
    out = Path(app.outdir)
    if error is not None or out.name != app.config.release:
        return
    items = "\n".join(
        f'<li><a href="{escape(name)}/index.html">{escape(name)}</a></li>' for name in built_versions(out.parent)
    )
    page = PAGE.format(project=escape(app.config.project), items=items)
    (out.parent / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Called by Sphinx."""
    app.connect("build-finished", write_list)
    return {"version": "1", "parallel_read_safe": True}
