"""How Sphinx builds the site: ``python -m sphinx -W -b html docs docs/_build/html``."""

import re
import shutil
import sys
from pathlib import Path

import lightning_ubs

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

# Notebooks live beside the other examples, where people look for them; Sphinx reads only what is below its folder.
shutil.copytree(
    HERE.parent / "examples",
    HERE / "notebooks",
    ignore=lambda folder, names: [name for name in names if not name.endswith(".ipynb")],
    dirs_exist_ok=True,
)

project = "lightning-ubs"
copyright = "the lightning-ubs contributors"
author = "The lightning-ubs contributors"
version = release = lightning_ubs.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "mathml",
    "raised_messages",
]
exclude_patterns = ["_build"]
templates_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks are executed by the tests, and keep their outputs

maximum_signature_line_length = 80  # longer ones have one argument per line
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "py:obj"

smartquotes_action = "D"  # dashes only, which Sphinx writes as -- in lists of parameters

html_theme = "furo"
html_math_renderer = "mathml"
html_title = f"lightning-ubs {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#5b3fd6", "color-brand-content": "#5b3fd6"},
    "dark_css_variables": {"color-brand-primary": "#b3a4ff", "color-brand-content": "#b3a4ff"},
}


def one_letter_is_no_list(app, what, name, obj, options, lines):
    """``num_samples: n.`` in a docstring is a sentence, not the first item of a numbered list."""
    lines[:] = [re.sub(r"^(\s+\w+: [a-zA-Z])\.$", r"\1\\.", line) for line in lines]


def where_errors_are(app, modname, attribute):
    """Errors of one module are shown under several names, of which the page of its source could link to one only."""
    return modname if attribute.endswith("Error") else None


def setup(app):
    """Called by Sphinx; before napoleon (500) reads the docstrings."""
    app.connect("autodoc-process-docstring", one_letter_is_no_list, priority=400)
    app.connect("viewcode-follow-imported", where_errors_are)
