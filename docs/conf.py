"""Settings of the documentation. Nothing here reaches for the network."""

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
# The pages describe kvfw itself, whatever else is installed beside it.
os.environ["KVFW_PLUGINS"] = ""

project = "kvfw"
author = "the kvfw authors"
copyright = "the kvfw authors"
release = version = installed_version("kvfw")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "part_pages",
    "public_names",
    "versions",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
# "..." and "--" in help texts and docstrings are meant as they are written.
smartquotes = False
myst_enable_extensions = ["deflist", "substitution"]
myst_substitutions = {"release": release}
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"kvfw {release}"
html_show_copyright = False
html_show_sphinx = False

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# kvfw's records are dataclasses and pydantic models; their fields stand in the class docstring already.
autodoc_default_options = {"undoc-members": False}
