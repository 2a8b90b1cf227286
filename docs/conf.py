"""The documentation's site, built by `make docs`. What it is made of lies in `_site`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_site"), str(HERE.parent / "src")]

from paceline import __version__  # noqa: E402  it is found only now

project = "Paceline"
release = __version__
author = "the authors of Paceline"
extensions = ["site_setup"]
root_doc = "index"
source_suffix = {".md": "markdown"}
smartquotes = False
highlight_language = "text"

html_theme = "theme"
html_theme_path = ["_site"]
html_title = "Paceline"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_use_index = False
html_domain_indices = False
html_permalinks_icon = "#"
