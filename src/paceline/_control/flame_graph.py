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
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        _PAGE.replace("@POLICY@", policy)
        .replace("@STYLE@", _STYLE)
        .replace("@SCRIPT@", _SCRIPT)
        .replace("@TITLE@", html.escape(title))
        .replace("@DATA@", embedded)
    )


def _layout_boxes(root: FlameNode) -> list[tuple[str, int, int, int]]:
    """Return name, depth, start and width of each box, parents first."""
    least = 0
    while sum(1 for _ in _iter_boxes(root, least)) > MOST_NODES:
        least = max(1, 2 * least)
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


_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1b1b; --dim: #666; --line: #ddd; --found: #8a3ffc; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181c; --text: #e8e8e8; --dim: #9a9a9a; --line: #333; --found: #be95ff; }
}
body { margin: 0; background: var(--back); color: var(--text); font: 13px system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; padding: 10px 12px;
  border-bottom: 1px solid var(--line); position: sticky; top: 0; background: var(--back); z-index: 1; }
h1 { font-size: 15px; margin: 0; font-weight: 600; }
input, button { font: inherit; color: inherit; background: transparent; border: 1px solid var(--line);
  border-radius: 4px; padding: 4px 8px; }
#details { color: var(--dim); min-height: 1.4em; flex: 1 1 260px; overflow-wrap: anywhere; }
#graph { position: relative; margin: 8px 12px; }
#graph button { position: absolute; height: 17px; overflow: hidden; white-space: nowrap; text-overflow: ellipsis;
  text-align: left; border: 0; border-radius: 2px; padding: 0 3px; font: 11px/17px ui-monospace, monospace;
  color: #1b1b1b; cursor: pointer; }
#graph button:focus-visible { outline: 2px solid var(--found); outline-offset: -2px; }
#graph button.found { background: var(--found) !important; color: var(--back); }
#graph button.above { opacity: .55; }
"""

_SCRIPT = """
"use strict";
const { nodes } = JSON.parse(document.getElementById("data").textContent);
const graph = document.getElementById("graph");
const details = document.getElementById("details");
const matched = document.getElementById("matched");
const search = document.getElementById("search");
const ROW = 18;
let zoomed = 0;
function share(count) { return (100 * count / nodes[0][3]).toFixed(1) + " %"; }
function hue(name) {
  let sum = 0;
  for (let at = 0; at < name.length; at++) sum = (sum * 31 + name.charCodeAt(at)) | 0;
  return "hsl(" + (20 + Math.abs(sum) % 40) + " 85% " + (62 + Math.abs(sum >> 6) % 14) + "%)";
}
function showDetails(node) { details.textContent = node[0] + " - " + share(node[3]) + " (" + node[3] + " samples)"; }
function draw() {
  const [, top, left, width] = nodes[zoomed];
  const query = search.value.toLowerCase();
  const across = graph.clientWidth;
  let deepest = 0, found = 0, foundUntil = -1;
  const boxes = document.createDocumentFragment();
  nodes.forEach((node, at) => {
    const [name, depth, start, count] = node;
    const above = depth < top && start <= left && start + count >= left + width;
    const within = depth >= top && start >= left && start + count <= left + width;
    if (!above && !within) return;
    const x = above ? 0 : (start - left) / width * across;
    const wide = above ? across : count / width * across;
    const matches = query !== "" && name.toLowerCase().includes(query);
    if (matches && within && start >= foundUntil) { found += count; foundUntil = start + count; }
    if (wide < 0.5) return;
    deepest = Math.max(deepest, depth);
    const box = document.createElement("button");
    box.type = "button";
    box.style.left = x + "px";
    box.style.top = depth * ROW + "px";
    box.style.width = Math.max(0.5, wide - 1) + "px";
    box.style.background = hue(name);
    if (wide > 20) box.textContent = name; else box.tabIndex = -1;
    box.setAttribute("aria-label", name + ", " + share(count));
    box.title = name + "\\n" + share(count) + ", " + count + " samples";
    box.classList.toggle("above", above);
    box.classList.toggle("found", matches);
    box.addEventListener("click", () => { zoomed = at; draw(); showDetails(node); });
    box.addEventListener("mouseenter", () => showDetails(node));
    box.addEventListener("focus", () => showDetails(node));
    boxes.append(box);
  });
  graph.replaceChildren(boxes);
  graph.style.height = (deepest + 1) * ROW + "px";
  matched.textContent = query === "" ? "" : "found in " + share(found) + " of the samples";
}
search.addEventListener("input", draw);
function reset() { zoomed = 0; search.value = ""; details.textContent = ""; draw(); }
document.getElementById("reset").addEventListener("click", reset);
addEventListener("resize", draw);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") reset();
  else if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
});
if (nodes[0][3] === 0) details.textContent = "no samples"; else draw();
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="@POLICY@">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>@STYLE@</style>
</head>
<body>
<header>
<h1>@TITLE@</h1>
<input id="search" type="search" placeholder="search (/)" aria-label="search">
<output id="matched"></output>
<button id="reset" type="button">all (Esc)</button>
<div id="details" role="status"></div>
</header>
<main id="graph"></main>
<script type="application/json" id="data">@DATA@</script>
<script>@SCRIPT@</script>
</body>
</html>
"""
