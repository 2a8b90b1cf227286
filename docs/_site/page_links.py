"""Where links lead: to pages and their anchors, to files of the repository, to the world.

What leads nowhere is a warning with the file and the line of the link.
"""

import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from docutils import nodes
from page_list import OUTSIDE, SitePages
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

if TYPE_CHECKING:
    from page_parser import _Page

logger = logging.getLogger(__name__)

_ELSEWHERE = re.compile(r"(https?|mailto):")
_LINES = re.compile(r"L(\d+)(-L(\d+))?")


def link(page: "_Page", href: str, inside: Sequence[nodes.Node]) -> nodes.Node:
    """What a link to `href` is: a reference, or only what is inside where it leads nowhere."""
    if _ELSEWHERE.match(href):
        return nodes.reference("", "", *inside, refuri=href)
    path, _, anchor = unquote(href).partition("#")
    if not path:
        return pending(page, page.docname, anchor, inside)
    place = _place(page, path)
    if (name := page.pages.page_at(place)) is not None:
        return pending(page, name, anchor, inside)
    file = page.pages.root / place
    if place.startswith("../") or not file.exists():
        page.warn(f"the link {href!r} leads to {place}, which does not exist")
        return nodes.inline("", "", *inside)
    if file.is_dir():
        if (name := page.pages.page_at(f"{place}/README.md")) is not None:
            return pending(page, name, anchor, inside)
    elif not _is_text(file):
        page.warn(f"the link {href!r} leads to a file that is not text")
        return nodes.inline("", "", *inside)
    if anchor and not _has_line(file, anchor):
        page.warn(f"the link {href!r} leads to no line of {place}")
    page.files.setdefault(place, page.docname)
    return pending(page, OUTSIDE + place, anchor, inside)


def image(page: "_Page", src: str, alt: str) -> list[nodes.Node]:
    """The picture, if it is there."""
    if _ELSEWHERE.match(src):
        page.warn(f"the image {src!r} is not of this repository")
        return []
    place = _place(page, unquote(src))
    if not (page.pages.root / place).is_file():
        page.warn(f"the image {src!r} does not exist: {place}")
        return []
    uri = "/" + posixpath.relpath(place, str(page.pages.docs))
    return [page.located(nodes.image(uri=uri, alt=alt))]


def pending(
    page: "_Page", name: str, anchor: str, inside: Sequence[nodes.Node], classes: Sequence[str] = ()
) -> addnodes.pending_xref:
    """A reference that is made when all pages are read."""
    made = addnodes.pending_xref("", *inside, refdomain="", reftype="page", reftarget=name, refexplicit=True)
    made["refdoc"], made["anchor"], made["refwarn"] = page.docname, anchor, True
    made["classes"].extend(classes)
    located: addnodes.pending_xref = page.located(made)
    return located


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, contents: nodes.Node
) -> nodes.reference | None:
    """The reference to a page or to a file's page, with a warning if that has no such anchor."""
    if node["reftype"] != "page":
        return None
    name, anchor, at = node["reftarget"], node["anchor"], node["refdoc"]
    pages = env.project
    assert isinstance(pages, SitePages)
    if name in pages.files and anchor and anchor not in env.site_anchors[name]:
        where = f"{pages.told(node.source)}:{node.line}"
        logger.warning("%s has no heading with the anchor #%s", pages.places[name], anchor, location=where)
    uri = "" if name == at and anchor else app.builder.get_relative_uri(at, name)
    if anchor:
        uri += f"#{anchor.split('-')[0] if name not in pages.files else anchor}"
    return nodes.reference("", "", *node.children, internal=True, refuri=uri, classes=list(node["classes"]))


def _place(page: "_Page", path: str) -> str:
    """The place in the repository of a path that a page tells."""
    return posixpath.normpath(posixpath.join(str(page.place.parent), path))


def _is_text(file: Path) -> bool:
    return b"\0" not in file.read_bytes()[:4096]


def _has_line(file: Path, anchor: str) -> bool:
    lines = _LINES.fullmatch(anchor)
    return bool(lines and file.is_file() and 1 <= int(lines[1]) <= len(file.read_text().splitlines()))
