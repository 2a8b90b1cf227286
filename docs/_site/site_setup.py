"""What Sphinx is told: the parser of Markdown, the pages there are, and what is made beside them.

The pages are those of `contents.toml`, wherever they lie (`page_list`); a page is read by `page_parser`, its links by
`page_links`. The reference comes from the sources (`api_source`, `api_pages`), the command line's page from the
commands themselves, and a file of the repository that a page links to gets a page of its own (`file_pages`).
"""

from functools import cache
from pathlib import Path
from typing import Any

import api_pages
import api_source
import command_page
import file_pages
import page_links
import page_list
import sidebar
from page_parser import MarkdownParser
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("site_root", None, "env", (str, type(None)))
    app.add_config_value("site_modules", None, "env", (list, type(None)))
    app.add_source_parser(MarkdownParser)
    app.add_search_language(_English)
    app.connect("builder-inited", _gather)
    app.connect("env-check-consistency", page_list.check)
    app.connect("missing-reference", page_links.resolve)
    app.connect("html-collect-pages", file_pages.collect)
    app.connect("html-page-context", sidebar.add)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": False}


class _English(SearchEnglish):
    """Sphinx's, which would find the stem of the same word again and again: a tenth of the build."""

    stem = cache(SearchEnglish.stem)


def _gather(app: Sphinx) -> None:
    """Find the pages and make those that are generated, before Sphinx looks for any."""
    root = Path(app.config.site_root or app.srcdir.parent).resolve()
    made = Path(app.doctreedir) / "made"
    modules = app.config.site_modules
    api = api_source.read(root / "src", api_source.MODULES if modules is None else modules)
    pages = page_list.SitePages(root, Path(app.srcdir), made)
    pages.generate(api_pages.pages(api))
    if modules is None:
        pages.generate({"reference/commands": command_page.text()})
    pages.names = api_pages.linked_names(api)
    app.project = app.env.project = pages
    app.env.site_anchors = {}
    app.env.site_files = {}
