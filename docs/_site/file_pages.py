"""Pages that show a file of the repository, with its lines numbered, or the files of one of its folders."""

import builtins
import html
import keyword
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from page_list import OUTSIDE, SitePages
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

_LEFT_OUT = {"__pycache__"}
_BUILTIN = {name for name in dir(builtins) if not name.startswith("_")}
_TOKEN = re.compile(
    r"""(?P<c1> \#[^\n]* )
      | (?P<s> (?:\b[rbfuRBFU]{1,2})? (?: \"{3} (?:\\.|[^\\])*? \"{3} | '{3} (?:\\.|[^\\])*? '{3}
                                   | " (?:\\.|[^"\\\n])* " | ' (?:\\.|[^'\\\n])* ' ) )
      | (?P<nf> (?<=\bdef[ ]) \w+ | (?<=\bclass[ ]) \w+ )
      | (?P<nd> ^[ ]*@[\w.]+ )
      | (?P<m> \b\d[\w.]* )
      | (?P<name> \b[A-Za-z]\w* )""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


def collect(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that some page links to, and for what the folders among them have."""
    pages = app.env.project
    assert isinstance(pages, SitePages)
    waiting = sorted(app.env.site_files)
    seen = set(waiting)
    for place in waiting:
        path = pages.root / place
        if path.is_dir():
            inside = _inside(path)
            further = [f"{place}/{one.name}" for one in inside]
            waiting += [one for one in further if one not in seen and pages.page_at(one) is None]
            seen.update(further)
            body = _listed(app, pages, place, inside)
        else:
            body = numbered(path)
        yield (
            OUTSIDE + place,
            {"title": place, "body": f"<h1>{html.escape(place)}</h1>{body}", "is_file": True},
            "page.html",
        )


def numbered(path: Path) -> str:
    """The file, highlighted, each line with the anchor that GitHub has for it."""
    shown = (_python if path.suffix == ".py" else _other)(path).rstrip("\n").split("\n")
    lines = "\n".join(f'<span class="line" id="L{number}">{line}</span>' for number, line in enumerate(shown, start=1))
    return f'<div class="highlight numbered"><pre>{lines}\n</pre></div>'


def _python(path: Path) -> str:
    """Python in the colours of Pygments, in a tenth of its time: there are hundreds of these files."""
    text, parts, end = path.read_text(), [], 0
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or ""
        parts.append(html.escape(text[end : found.start()]))
        if kind == "name":
            kind = "k" if keyword.iskeyword(found[0]) else "nb" if found[0] in _BUILTIN else ""
        # No colour crosses the end of a line, for each line is an element of its own.
        lines = (f'<span class="{kind}">{html.escape(line)}</span>' for line in found[0].split("\n"))
        parts.append("\n".join(lines) if kind else html.escape(found[0]))
        end = found.end()
    return "".join([*parts, html.escape(text[end:])])


def _other(path: Path) -> str:
    try:
        lexer = get_lexer_for_filename(path.name, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    return highlight(path.read_text(), lexer, HtmlFormatter(nowrap=True))


def _inside(folder: Path) -> list[Path]:
    return sorted(
        one
        for one in folder.iterdir()
        if one.name not in _LEFT_OUT and not one.name.startswith(".") and (one.is_dir() or _is_text(one))
    )


def _is_text(file: Path) -> bool:
    return b"\0" not in file.read_bytes()[:4096]


def _listed(app: Sphinx, pages: SitePages, place: str, inside: list[Path]) -> str:
    rows = []
    for one in inside:
        at = posixpath.join(place, one.name)
        uri = app.builder.get_relative_uri(OUTSIDE + place, pages.page_at(at) or OUTSIDE + at)
        rows.append(f'<li><a href="{html.escape(uri)}"><code>{html.escape(one.name)}</code></a></li>')
    return f"<ul>{''.join(rows)}</ul>"
