"""Pages that show a file of the repository, with its lines numbered."""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from page_list import OUTSIDE, SitePages
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx


def collect(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that some page links to."""
    pages = app.env.project
    assert isinstance(pages, SitePages)
    for place in sorted(app.env.site_files):
        body = f"<h1>{html.escape(place)}</h1>{_numbered(pages.root / place)}"
        yield OUTSIDE + place, {"title": place, "body": body, "toctree": _no_contents}, "page.html"


def _no_contents(**options: object) -> str:
    """Files are looked up from a page. The contents beside each of them would take as long as all pages."""
    return ""


def _numbered(path: Path) -> str:
    """The file, highlighted, each line with the anchor that GitHub has for it."""
    try:
        lexer = get_lexer_for_filename(path.name, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    shown = highlight(path.read_text(), lexer, HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
    lines = "\n".join(f'<span class="line" id="L{number}">{line}</span>' for number, line in enumerate(shown, start=1))
    return f'<div class="highlight numbered"><pre>{lines}\n</pre></div>'
