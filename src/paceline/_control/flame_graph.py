"""Renders folded stacks as a flame graph: one self-contained HTML page with zoom, search and keyboard control.

A folded stack is a line `outermost;...;innermost COUNT`. Names come from arbitrary code: they are embedded as JSON, in
which no markup can close the surrounding element, and are displayed as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PAGE = Path(__file__).with_name("flame_page")

MOST_NODES = 20_000
"""The maximum number of boxes on the page; beyond that the narrowest are left out."""


@dataclass
class FlameNode:
    """One function in a call path."""

    name: str
    count: int = 0
    """How many samples include it, directly or in a function it called."""
    children: dict[str, FlameNode] = field(default_factory=dict)


def parse_folded_stacks(folded: str) -> FlameNode:
    """Parse folded stacks; invalid lines are skipped."""
    root = FlameNode("all")
    for line in folded.split("\n"):
        stack, _, number = line.rpartition(" ")
        if not stack or not (number.isascii() and number.isdigit()):
            continue
        count = int(number)
        root.count += count
        node = root
        for name in stack.split(";"):
            node = node.children.setdefault(name, FlameNode(name))
            node.count += count
    return root


def render_flame_page(folded: str, title: str) -> str:
    root = parse_folded_stacks(folded)
    data = {"title": title, "nodes": _layout_boxes(root)}
    # A `<` in a name could otherwise close the script element.
    embedded = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    page, style, script = ((_PAGE / name).read_text() for name in ("page.html", "style.css", "script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        page.replace("@POLICY@", policy)
        .replace("@STYLE@", style)
        .replace("@SCRIPT@", script)
        .replace("@TITLE@", html.escape(title))
        .replace("@DATA@", embedded)
    )


def _layout_boxes(root: FlameNode) -> list[tuple[str, int, int, int]]:
    """Return name, depth, start and width of each box, parents first."""
    least = 1
    while sum(1 for _ in _iter_boxes(root, least)) > MOST_NODES:
        least *= 2
    return list(_iter_boxes(root, least))


def _iter_boxes(root: FlameNode, least: int) -> Iterator[tuple[str, int, int, int]]:
    todo = [(root, 0, 0)]
    while todo:
        node, depth, start = todo.pop()
        yield node.name, depth, start, node.count
        for child in sorted(node.children.values(), key=lambda each: each.name):
            if child.count >= least:
                todo.append((child, depth + 1, start))
            start += child.count
