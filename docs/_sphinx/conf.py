"""Configuration of Sphinx; `make docs` writes the manual's pages to build/docs and builds them from there."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

project = "keras_vit"
release = re.search(r'__version__ = "(.*)"', (ROOT / "keras_vit" / "version.py").read_text())[1]
extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["_sphinx"]

# Anchors are those of the repository's page: lower case, no punctuation, hyphens for spaces.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "html_image"]
# Indented code is mostly commands; Python blocks say so.
highlight_language = "none"
copybutton_prompt_text = "$ "
smartquotes = False
python_maximum_signature_line_length = 88
python_display_short_literal_types = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "keras_vit"
html_static_path = ["static"]
html_css_files = ["front.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
