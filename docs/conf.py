"""The documentation site, built by `make docs`.  Nothing is fetched, neither here nor by the reader's browser."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "bayesprune"
release = version = installed_version("bayesprune")
html_title = "bayesprune"

# `docstrings` and `mathml` are the two small extensions in docs/site.
extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings", "mathml"]
exclude_patterns = ["remarks", "figures"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
maximum_signature_line_length = 110

html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
