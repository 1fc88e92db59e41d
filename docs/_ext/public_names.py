"""The reference of public names, and cross-references to them.

The page ``reference.rst`` has every name of ``kvfw.__all__``, by subject. Docstrings name a class where it is defined
(``kvfw.core.contracts.parts.Merger``); references lead to where users import it (``kvfw.Merger``), and what is not
public stays plain text.
"""

import inspect
from pathlib import Path
from pydoc import locate

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.typing import ExtensionMetadata

import kvfw

#: Subjects by the modules that names come from; a name from any other module stands under the last title.
SUBJECTS = {
    "Running things": (
        "kvfw.model.load.load",
        "kvfw.model.session.attach",
        "kvfw.runner.plan.config",
        "kvfw.runner.execute.evaluate",
    ),
    "Compositions": ("kvfw.core.compose.composition",),
    "State, and what scorers see": ("kvfw.core.state.state", "kvfw.core.state.observation", "kvfw.core.state.rope"),
    "Contracts": ("kvfw.core.contracts.parts", "kvfw.core.contracts.codec"),
    "Writing parts": (
        "kvfw.core.parts.part",
        "kvfw.core.parts.spec",
        "kvfw.core.registry.hooks",
        "kvfw.core.compress.stages",
    ),
    "Tools for parts": (
        "kvfw.core.ops.attention",
        "kvfw.core.ops.clusters",
        "kvfw.core.ops.rounding",
        "kvfw.core.ops.topk",
        "kvfw.core.state.slots",
    ),
    "Tasks": ("kvfw.core.contracts.task", "kvfw.tasks.prompting"),
    "Metrics": ("kvfw.core.contracts.metric", "kvfw.core.contracts.records"),
    "Errors": ("kvfw.errors",),
}
OTHERS = "More"


def write_reference(app: Sphinx) -> None:
    """Writes ``reference.rst``; it keeps its time stamp where nothing changed."""
    path = Path(app.srcdir) / "reference.rst"
    text = reference()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def reference() -> str:
    """Every public name under its subject, in the order of the subject's modules."""
    by_subject = {
        title: [name for module in modules for name, home in kvfw._HOME_OF.items() if home == module]
        for title, modules in SUBJECTS.items()
    }
    placed = {name for names in by_subject.values() for name in names}
    by_subject[OTHERS] = [name for name in kvfw.__all__ if name not in placed]
    blocks = ["Reference\n=========", "Everything that can be imported from ``kvfw``; nothing else is public."]
    for title, names in by_subject.items():
        if names:
            blocks += [f"{title}\n{'-' * len(title)}", *map(directive, names)]
    return "\n\n".join(blocks) + "\n"


def directive(name: str) -> str:
    """What tells autodoc to document a name."""
    value = getattr(kvfw, name)
    if not inspect.isclass(value):
        return f".. auto{'function' if inspect.isroutine(value) else 'data'}:: kvfw.{name}"
    if issubclass(value, Exception):
        return f".. autoexception:: kvfw.{name}"
    members = [key for key in vars(value) if not key.startswith("_") and key != "model_config"]
    return f".. autoclass:: kvfw.{name}" + (f"\n   :members: {', '.join(members)}" if members else "")


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> nodes.Node | None:
    """A link to the public name, plain text for other names of Python; None, so a warning, for what is not there."""
    target = str(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or (target.startswith("kvfw.") and locate(target) is None):
        return None
    name = target.rpartition(".")[2]
    if name in kvfw.__all__:
        document = str(node["refdoc"])
        found = env.domains["py"].resolve_xref(env, document, app.builder, "obj", f"kvfw.{name}", node, content)
        if found is not None:
            return found
    return content


def setup(app: Sphinx) -> ExtensionMetadata:
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference)
    app.connect("missing-reference", resolve)
    return {"version": "1", "parallel_read_safe": True}
