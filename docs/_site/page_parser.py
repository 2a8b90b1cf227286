"""Pages are read by MyST, and held to what GitHub shows in the same way.

Links lead to pages and their anchors, to files of the repository, or to the world; what leads nowhere is a warning.
HTML and directives are warnings too: they would not be the same in both places. Inline code that is a public name leads
to the reference.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from docutils import nodes
from markdown_it.tree import SyntaxTreeNode
from myst_parser.mdit_to_docutils.sphinx_ import SphinxRenderer
from myst_parser.parsers.mdit import create_md_parser
from myst_parser.parsers.sphinx_ import MystParser
from page_list import OUTSIDE, SitePages
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

_COMMENT = re.compile(r"\s*(<!--.*?-->\s*)+", re.DOTALL)
_ELSEWHERE = re.compile(r"(https?|mailto):")
_LINE = re.compile(r"L(\d+)")


class PageParser(MystParser):
    supported = ("markdown",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        parser = create_md_parser(document.settings.env.myst_config, _Page)
        parser.options["document"] = document
        parser.render(inputstring)


class _Page(SphinxRenderer):
    @property
    def _pages(self) -> SitePages:
        pages = self.sphinx_env.project
        assert isinstance(pages, SitePages)
        return pages

    def _warn(self, token: SyntaxTreeNode, message: str) -> None:
        line = next((one.map[0] for one in _upwards(token) if one.map), 1)
        logger.warning(message, location=f"{self.document['source']}:{line}")

    def render_link(self, token: SyntaxTreeNode) -> None:
        href = unquote(str(token.attrs["href"]))
        if _ELSEWHERE.match(href):
            return self.render_link_url(token)
        path, _, anchor = href.partition("#")
        env = self.sphinx_env
        file = Path(env.relfn2path(path)[1]) if path else Path(self.document["source"])
        name = env.path2doc(file) if path else env.docname
        if name is not None and self._pages.names.get(anchor) == (name, anchor):
            return self._lead(token, name, anchor)
        if name is not None:
            token.attrs["href"] = href if path else f"/{posixpath.relpath(file, env.srcdir)}#{anchor}"
            return self.render_link_project(token)
        if not file.is_relative_to(self._pages.root) or not file.is_file():
            self._warn(token, f"the link {href!r} leads to no page and no file of the repository")
        elif b"\0" in (content := file.read_bytes())[:4096]:
            self._warn(token, f"the link {href!r} leads to a file that is not text")
        elif anchor and not ((line := _LINE.fullmatch(anchor)) and 1 <= int(line[1]) <= len(content.splitlines())):
            self._warn(token, f"the link {href!r} leads to no line of the file")
        else:
            place = file.relative_to(self._pages.root).as_posix()
            env.site_files.add(place)
            return self._lead(token, OUTSIDE + place, anchor)
        return self.render_children(token)

    def _lead(self, token: SyntaxTreeNode, name: str, anchor: str, *inside: nodes.Node) -> None:
        made = _reference(self.sphinx_env.docname, name, anchor, *inside)
        with self.current_node_context(made, append=True):
            self.render_children(token)

    def render_image(self, token: SyntaxTreeNode) -> None:
        if _ELSEWHERE.match(str(token.attrs["src"])):
            self._warn(token, f"the image {token.attrs['src']!r} is not of this repository")
        super().render_image(token)

    def render_code_inline(self, token: SyntaxTreeNode) -> None:
        target = self._pages.names.get(token.content.removesuffix("()"))
        if target is None or target[0] == self.sphinx_env.docname or _is_within(token, "heading", "link"):
            return super().render_code_inline(token)
        literal = nodes.literal(token.content, token.content, classes=["name"])
        return self._lead(token, *target, literal)

    def render_fence(self, token: SyntaxTreeNode) -> None:
        assert token.token is not None
        if not token.info and token.content.startswith("$ "):
            token.token.info = "console"
        super().render_fence(token)

    def render_table(self, token: SyntaxTreeNode) -> None:
        super().render_table(token)
        for head in list(self.current_node[-1].findall(nodes.thead)):
            if not head.astext().strip():
                head.parent.remove(head)

    def render_html_block(self, token: SyntaxTreeNode) -> None:
        if not _COMMENT.fullmatch(token.content):
            self._warn(token, f"raw HTML: {token.content.strip().splitlines()[0]!r}")

    def render_directive(self, token: SyntaxTreeNode, name: str, *args: object, **options: object) -> None:
        if name != "toctree" and self.sphinx_env.docname not in self._pages.made:
            self._warn(token, f"a directive, which GitHub does not know: {name!r}")
        super().render_directive(token, name, *args, **options)


def lead_types(app: Sphinx, doctree: nodes.document) -> None:
    """Types in signatures lead to their entries where they have one. Most are Python's or a framework's."""
    pages = app.env.project
    assert isinstance(pages, SitePages)
    for found in list(doctree.findall(addnodes.pending_xref)):
        if found["refdomain"] == "py":
            target = pages.names.get(found["reftarget"])
            found.replace_self(_reference(app.env.docname, *target, *found.children) if target else found.children)


def _reference(at: str, name: str, anchor: str, *inside: nodes.Node) -> nodes.reference:
    uri = posixpath.relpath(f"{name}.html", posixpath.dirname(at)) + (anchor and f"#{anchor}")
    return nodes.reference("", "", *inside, internal=True, refuri=uri)


def _upwards(token: SyntaxTreeNode | None) -> Iterator[SyntaxTreeNode]:
    while token is not None:
        yield token
        token = token.parent


def _is_within(token: SyntaxTreeNode, *kinds: str) -> bool:
    return any(one.type in kinds for one in _upwards(token))
