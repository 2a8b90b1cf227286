"""Output of commands: aligned columns, coloured states on a terminal, and escaped text.

Journals and logs contain arbitrary text, so escape sequences are removed before they reach a terminal. This module
needs only the standard library and msgspec.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._core import settings
from paceline._view.formatting import cut_to_width, display_width

if TYPE_CHECKING:
    from paceline._control.requests import Answer

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor movement
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links and other string sequences
    r"|\x1b[ -/]*[0-~]"
)
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

COLOURS = {
    "running": 32, "starting": 36, "waiting": 36, "stopping": 33, "validating": 36, "finished": 0, "failed": 31,
    "stopped": 33, "preempted": 33, "lost": 31, "hangs": 31, "gone": 31, "returned": 0, "ok": 32, "warn": 33,
    "fail": 31,
}  # fmt: skip


def escape_text(text: str) -> str:
    """Make text safe for a terminal: remove escape sequences and spell out other control characters."""
    if text.isprintable():
        return text
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], _SEQUENCE.sub("", text))


def escape_line(text: str) -> str:
    """Like `escape_text`, on one line."""
    return escape_text(text).replace("\n", "\\n").replace("\t", " ")


def print_json(value: Any) -> int:
    """Print one JSON document and return exit code 0."""
    import msgspec

    print(msgspec.json.encode(value).decode())
    return 0


def print_error(text: str) -> None:
    print(f"paceline: {escape_text(text)}", file=sys.stderr)


def print_line(text: str) -> None:
    """Print a message of our own, or of the run that this command drives."""
    print(f"paceline: {text}", file=sys.stderr, flush=True)


def print_message(text: str, code: int) -> int:
    """Like `print_line`, and return the exit code."""
    print_line(text)
    return code


def print_answer(answer: Answer, lines: Iterable[str] | None, *, as_json: bool) -> None:
    """Print the answer of a run's driver: as JSON, as these lines, or as an error if there are none."""
    if as_json:
        print_json(answer)
    elif lines is not None:
        for line in lines:
            print(line)
    else:
        print_error(answer.text)


def print_accepted(answer: Answer) -> None:
    """Print that a driver has accepted a request, while its answer takes time."""
    print(escape_text(answer.text), file=sys.stderr)


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; it becomes the file once it is complete."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def colour_state(word: str) -> str:
    """Colour a state if stdout is a terminal."""
    code = COLOURS.get(word, 0)
    is_coloured = sys.stdout.isatty() and not settings.load().no_color
    return f"\x1b[{code}m{word}\x1b[0m" if code and is_coloured else word


def terminal_width() -> int | None:
    """Return the width of the terminal, or None without one, in which case nothing is truncated."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    except OSError:
        return None


def format_table(
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    states: Sequence[int] = (),
    indent: str = "",
    within: int | None = None,
) -> str:
    """Align rows of cells into columns.

    `right` lists the columns to align right, `states` the columns to colour. Lines wider than `within` are truncated.
    """
    cells = [[escape_line(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    widths = [max(display_width(cell) for cell in column) for column in zip(*cells, strict=True)]
    return "\n".join(_format_row(row, widths, right, states, indent, within) for row in cells)


def _format_row(
    row: Sequence[str],
    widths: Sequence[int],
    right: Sequence[int],
    states: Sequence[int],
    indent: str,
    within: int | None,
) -> str:
    padded = [
        " " * (wide - display_width(cell)) + cell if at in right else cell + " " * (wide - display_width(cell))
        for at, (cell, wide) in enumerate(zip(row, widths, strict=True))
    ]
    text = truncate_line(indent + "  ".join(padded).rstrip(), within)
    for at in sorted(states, reverse=True):
        begin = len(indent) + sum(len(cell) + 2 for cell in padded[:at])
        if text[begin : begin + len(row[at])] == row[at]:
            text = text[:begin] + colour_state(row[at]) + text[begin + len(row[at]) :]
    return text


def truncate_line(text: str, within: int | None) -> str:
    """Truncate text to `within` columns and mark the cut."""
    if within is None or display_width(text) <= within:
        return text
    return f"{cut_to_width(text, within - 1)}…"


def wrap_text(text: str, within: int, indent: str = "") -> str:
    """Wrap text at `within` columns where its words allow it. Existing line breaks are kept."""
    lines = []
    for own in escape_text(text).split("\n"):
        now = ""
        for word in own.split(" "):
            if now and display_width(f"{indent}{now} {word}") > within:
                lines.append(indent + now)
                now = word
            else:
                now = f"{now} {word}" if now else word
        lines.append((indent + now).rstrip())
    return "\n".join(lines)
