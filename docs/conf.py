"""The site: `make docs`. Nothing is read from the network, and pages request nothing from other servers."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from generate_reference import write_reference  # noqa: E402

import bertvision  # noqa: E402

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["BERTVISION_DOCS"] = str(HERE)  # where notebooks find their data

project = "bertvision"
copyright = "the authors, Apache-2.0"
version = release = bertvision.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "tutorials/data"]
default_role = "literal"
smartquotes = False  # it would turn the two hyphens of flags into a dash
highlight_language = "none"
html_theme = "furo"
html_title = "bertvision"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["llms.txt"]
html_copy_source = False
html_show_sourcelink = False
templates_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Headings of generated tables begin at the third level.
suppress_warnings = ["myst.header"]

nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_in_temp = True
nb_output_stderr = "remove"

autodoc_member_order = "bysource"
maximum_signature_line_length = 100  # longer ones have a line for each parameter
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
copybutton_exclude = ".linenos, .gp, .go"


def setup(app):
    """Write the parts of the reference that are generated."""
    app.connect("builder-inited", lambda _: write_reference(HERE / "reference"))
