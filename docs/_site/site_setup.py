"""What Sphinx is told: the pages there are, how they are read, and what is made beside them.

The pages are those of `contents.toml`, wherever they lie (`page_list`); MyST reads them (`page_parser`). The reference
comes from the sources (`api_source`, `api_pages`), the command line's page from the commands themselves, the tables of
Ray's names from comparing both (`ray_names_page`), and a file of the repository that a page links to gets a page of its
own (`file_pages`).
"""

from typing import Any

import api_pages
import api_source
import command_page
import file_pages
import page_list
import page_parser
import ray_names_page
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("site_modules", api_source.MODULES, "env", (list, tuple))
    app.add_source_parser(page_parser.PageParser, override=True)
    app.connect("builder-inited", _gather)
    app.connect("source-read", page_list.read)
    app.connect("doctree-read", page_parser.lead_types)
    app.connect("html-collect-pages", file_pages.collect)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": False}


def _gather(app: Sphinx) -> None:
    """Find the pages and make those that are generated, before Sphinx looks for any."""
    docs = app.srcdir.resolve()
    api = api_source.read(docs.parent / "src", app.config.site_modules)
    made = api_pages.pages(api)
    if "paceline" in app.config.site_modules:
        made["reference/commands"] = command_page.FILE, command_page.text()
        made["guides/ray-names"] = None, ray_names_page.text()
    app.project = app.env.project = page_list.SitePages(docs, made, api_pages.linked_names(api))
    app.env.site_files = set()
