"""The documentation's site, built by `make docs`. What it is made of lies in `_site`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_site"), str(HERE.parent / "src")]

from paceline import __version__  # noqa: E402  it is found only now

project = "Paceline"
release = __version__
author = "the authors of Paceline"
extensions = ["myst_parser", "sphinx_copybutton", "site_setup"]
root_doc = "index"
source_suffix = dict.fromkeys([".md", ".ipynb", ".py"], "markdown")
smartquotes = False
highlight_language = "text"

# What GitHub would not show as the site does is not read as anything else here.
myst_disable_syntax = [
    "front_matter",
    "footnote_def",
    "footnote_ref",
    "myst_block_break",
    "myst_line_comment",
    "myst_role",
    "myst_target",
]
myst_enable_extensions = ["strikethrough"]
myst_heading_anchors = 6
suppress_warnings = ["myst.strikethrough"]

add_module_names = False
maximum_signature_line_length = 96
toc_object_entries_show_parents = "hide"

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "Paceline"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_domain_indices = False
copybutton_exclude = ".linenos, .gp, .go"
