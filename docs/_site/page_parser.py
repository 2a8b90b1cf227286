"""Markdown as GitHub shows it, as Sphinx's nodes.

Headings get GitHub's anchors. A comment is dropped, but for `<!-- id: NAME -->`, which gives the block after it that
anchor. Other HTML is a warning: it would not be the same in both places. Inline code that is a public name leads to the
reference.
"""

import re
from typing import Any

import page_links
from docutils import nodes
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from page_list import SitePages
from sphinx.parsers import Parser
from sphinx.util import logging

logger = logging.getLogger(__name__)

_COMMENT = re.compile(r"\s*(<!--.*?-->\s*)+", re.DOTALL)
_ID = re.compile(r"<!-- id: (\S+) -->")
_NOT_IN_SLUGS = re.compile(r"[^\w\- ]")
_INLINE = {"strong": nodes.strong, "em": nodes.emphasis}


def slug(heading: str) -> str:
    """GitHub's anchor of a heading, before it is told apart from others of the page."""
    return _NOT_IN_SLUGS.sub("", heading.strip().lower()).replace(" ", "-")


class MarkdownParser(Parser):
    supported = ("markdown",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        env = document.settings.env
        page = _Page(env.project, env.docname, document)
        page.read(inputstring)
        env.site_anchors[env.docname] = page.anchors
        env.site_files.update(page.files)
        # Pages come from our own contents, not from toctrees.
        env.metadata[env.docname]["orphan"] = ""


class _Page:
    """One page while it is read."""

    def __init__(self, pages: SitePages, docname: str, document: nodes.document) -> None:
        self.pages = pages
        self.docname = docname
        self.place = pages.places[docname]
        self.document = document
        self._file = pages.files[docname]
        self.anchors: set[str] = set()
        self.files: dict[str, str] = {}
        """Files of the repository that the page links to, each with the place of the link."""
        self._sections: list[tuple[int, nodes.Element]] = [(0, document)]
        self._next_id: str | None = None
        self._line = 1
        self._plain = 0
        """Within how many headings and links: there, code is no link of its own."""

    def read(self, text: str) -> None:
        tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
        for child in SyntaxTreeNode(tokens).children:
            if child.type == "heading":
                self._heading(child)
            else:
                self._sections[-1][1].extend(self._block(child))
        if not any(isinstance(node, nodes.section) for node in self.document.children):
            self.warn("the page has no title: begin it with `# Title`")

    def warn(self, message: str) -> None:
        logger.warning(message, location=f"{self.pages.told(self._file)}:{self._line}")

    # -- blocks

    def _block(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        if node.map is not None:
            self._line = node.map[0] + 1
        made = getattr(self, f"_{node.type}", None)
        if made is None:
            self.warn(f"Markdown of the kind {node.type!r} is not shown on the site")
            return []
        found: list[nodes.Node] = made(node)
        if self._next_id is not None and found and isinstance(found[0], nodes.Element):
            found[0]["ids"].append(self._anchor(self._next_id))
            self._next_id = None
        return found

    def _blocks(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        return [made for child in node.children for made in self._block(child)]

    def located(self, node: nodes.Element) -> Any:
        node.source, node.line = str(self._file), self._line
        return node

    def _anchor(self, wanted: str) -> str:
        anchor, number = wanted, 0
        while anchor in self.anchors:
            number += 1
            anchor = f"{wanted}-{number}"
        self.anchors.add(anchor)
        return anchor

    def _heading(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        if node.map is not None:
            self._line = node.map[0] + 1
        self._plain += 1
        title = self._inlines(node.children[0])
        self._plain -= 1
        text = "".join(made.astext() for made in title)
        own, self._next_id = self._next_id, None
        anchor = self._anchor(own or slug(text))
        if node.level > 0:
            return [nodes.rubric("", "", *title, ids=[anchor])]
        section = self.located(nodes.section(ids=[anchor], names=[]))
        self.document.ids[anchor] = section
        section += self.located(nodes.title(text, "", *title))
        level = int(node.tag[1])
        while self._sections[-1][0] >= level:
            self._sections.pop()
        self._sections[-1][1].append(section)
        self._sections.append((level, section))
        return []

    def _paragraph(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        made = self._inlines(node.children[0])
        return [self.located(nodes.paragraph("", "", *made))] if made else []

    def _fence(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        told = node.info.split()
        return [self._code(node.content, told[0] if told else None)]

    def _code_block(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        return [self._code(node.content, None)]

    def _code(self, text: str, language: str | None) -> nodes.Node:
        if language is None:
            language = "console" if text.startswith("$ ") else "text"
        text = text.rstrip("\n")
        return self.located(nodes.literal_block(text, text, language=language))

    def _blockquote(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        return [nodes.block_quote("", *self._blocks(node))]

    def _bullet_list(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        return [nodes.bullet_list("", *self._blocks(node))]

    def _ordered_list(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        made = nodes.enumerated_list("", *self._blocks(node), enumtype="arabic", prefix="", suffix=".")
        made["start"] = int(node.attrs.get("start", 1))
        return [made]

    def _list_item(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        return [nodes.list_item("", *self._blocks(node))]

    def _hr(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        # Docutils wants no transition at the end of a section, where Markdown allows a rule.
        return [nodes.raw("", '<hr class="docutils" />\n', format="html")]

    def _table(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        rows = {part.type: [self._row(row) for row in part.children] for part in node.children}
        (head,) = rows["thead"]
        group = nodes.tgroup(cols=len(head))
        group += [nodes.colspec(colwidth=1) for _ in head]
        if head.astext().strip():
            group += nodes.thead("", head)
        group += nodes.tbody("", *rows.get("tbody", []))
        return [nodes.table("", group, classes=["colwidths-auto"])]

    def _row(self, row: SyntaxTreeNode) -> nodes.row:
        made = nodes.row()
        if row.map is not None:
            self._line = row.map[0] + 1
        for cell in row.children:
            aligned = str(cell.attrs.get("style", "")).removeprefix("text-align:")
            entry = nodes.entry("", nodes.paragraph("", "", *self._inlines(cell.children[0])))
            if aligned in ("right", "center"):
                entry["classes"].append(f"text-{aligned}")
            made += entry
        return made

    def _html_block(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        self._html(node.content)
        if own := _ID.search(node.content):
            self._next_id = own[1]
        return []

    def _html(self, text: str) -> None:
        if not _COMMENT.fullmatch(text):
            self.warn(f"raw HTML: {text.strip().splitlines()[0]!r}")

    # -- inline

    def _inlines(self, inline: SyntaxTreeNode) -> list[nodes.Node]:
        if inline.map is not None:
            self._line = inline.map[0] + 1
        return self._inside(inline)

    def _inside(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        return [made for child in node.children for made in self._inline(child)]

    def _inline(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        match node.type:
            case "text":
                return [nodes.Text(node.content)] if node.content else []
            case "softbreak":
                self._line += 1
                return [nodes.Text("\n")]
            case "hardbreak":
                self._line += 1
                return [nodes.raw("", "<br />", format="html"), nodes.Text("\n")]
            case "code_inline":
                return [self._name(node.content)]
            case "strong" | "em":
                return [_INLINE[node.type]("", "", *self._inside(node))]
            case "s":
                return [nodes.inline("", "", *self._inside(node), classes=["struck"])]
            case "link":
                self._plain += 1
                inside = self._inside(node)
                self._plain -= 1
                return [page_links.link(self, str(node.attrs["href"]), inside)]
            case "image":
                return page_links.image(self, str(node.attrs["src"]), node.content)
            case "html_inline":
                self._html(node.content)
                return []
        self.warn(f"Markdown of the kind {node.type!r} is not shown on the site")
        return []

    def _name(self, text: str) -> nodes.Node:
        """Inline code, which leads to the reference if it is a public name."""
        literal = nodes.literal(text, text)
        target = None if self._plain else self.pages.names.get(text.removesuffix("()"))
        if target is None or target[0] == self.docname:
            return literal
        return page_links.pending(self, *target, [literal], classes=["name"])
