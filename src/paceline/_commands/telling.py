"""How commands print: aligned columns, states in modest colours on a terminal, texts of runs without escape codes.

What stands in journals and logs was written by anybody: it is cleaned before it reaches a terminal. No part of this
needs more than the standard library and msgspec.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from paceline._core import settings

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, and moves of the cursor
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, and whatever else a string is given to
    r"|\x1b[ -/]*[0-~]"
)
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

COLOURS = {
    "running": 32, "starting": 36, "waiting": 36, "stopping": 33, "validating": 36, "complete": 0, "failed": 31,
    "stopped": 33, "preempted": 33, "lost": 31, "hangs": 31, "gone": 31, "returned": 0, "ok": 32, "warn": 33,
    "fail": 31,
}  # fmt: skip


def clean(text: str) -> str:
    """A text as a terminal may be given it: sequences for the terminal left out, other such characters spelled out."""
    if text.isprintable():
        return text
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], _SEQUENCE.sub("", text))


def line(text: str) -> str:
    """The same on one line."""
    return clean(text).replace("\n", "\\n").replace("\t", " ")


def json(value: Any) -> int:
    """One document, and the exit code of a command that has nothing else to say."""
    import msgspec

    print(msgspec.json.encode(value).decode())
    return 0


def complain(text: str) -> None:
    print(f"paceline: {clean(text)}", file=sys.stderr)


def state(word: str) -> str:
    """A state, coloured on a terminal."""
    code = COLOURS.get(word, 0)
    return f"\x1b[{code}m{word}\x1b[0m" if code and in_colour() else word


def in_colour() -> bool:
    return sys.stdout.isatty() and not settings.load().no_color


def width() -> int | None:
    """Of the terminal; None where there is none, and nothing has to be cut."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    except OSError:
        return None


def table(
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    states: Sequence[int] = (),
    indent: str = "",
    within: int | None = None,
) -> str:
    """Rows of cells, aligned. `right`: the columns that are aligned to the right; `states`: those that are coloured.

    `within` cuts what is longer.
    """
    cells = [[line(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    widths = [max(columns(cell) for cell in column) for column in zip(*cells, strict=True)]
    return "\n".join(_row(row, widths, right, states, indent, within) for row in cells)


def _row(
    row: Sequence[str],
    widths: Sequence[int],
    right: Sequence[int],
    states: Sequence[int],
    indent: str,
    within: int | None,
) -> str:
    padded = [
        " " * (wide - columns(cell)) + cell if at in right else cell + " " * (wide - columns(cell))
        for at, (cell, wide) in enumerate(zip(row, widths, strict=True))
    ]
    text = cut(indent + "  ".join(padded).rstrip(), within)
    for at in sorted(states, reverse=True):
        begin = len(indent) + sum(len(cell) + 2 for cell in padded[:at])
        if text[begin : begin + len(row[at])] == row[at]:
            text = text[:begin] + state(row[at]) + text[begin + len(row[at]) :]
    return text


def cut(text: str, within: int | None) -> str:
    """At most so many columns, with a mark where something is left out."""
    if within is None or columns(text) <= within:
        return text
    kept = ""
    for letter in text:
        if columns(kept + letter) >= within:
            break
        kept += letter
    return kept + "…"


def folded(text: str, within: int, indent: str = "") -> str:
    """A text in lines of at most so many columns where its words allow it; its own lines stay lines."""
    lines = []
    for own in clean(text).split("\n"):
        now = ""
        for word in own.split(" "):
            if now and columns(f"{indent}{now} {word}") > within:
                lines.append(indent + now)
                now = word
            else:
                now = f"{now} {word}" if now else word
        lines.append((indent + now).rstrip())
    return "\n".join(lines)


def columns(text: str) -> int:
    """How wide a text is on a terminal."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)
