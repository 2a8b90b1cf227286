"""Lines of styled text, which a terminal and a notebook show alike: their width, wrapping, columns and markup. Pure."""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterable, Sequence

from paceline._view.formatting import cut_to_width, display_width

StyledPiece = tuple[str, str]
"""A text and its style: `bold`, `dim`, a colour, several of these, or empty."""
StyledLine = tuple[StyledPiece, ...]

_STYLES = {
    "bold": ("1", "font-weight:bold"),
    "dim": ("2", "opacity:0.6"),
    "red": ("31", "color:#c62828"),
    "green": ("32", "color:#2e7d32"),
    "yellow": ("33", "color:#b26a00"),
    "magenta": ("35", "color:#8e24aa"),
    "cyan": ("36", "color:#00838f"),
}
"""Code of a terminal, and CSS."""


def to_plain_text(line: StyledLine) -> str:
    return "".join(text for text, _ in line).rstrip()


def to_terminal_text(line: StyledLine) -> str:
    return "".join(_apply_codes(text, style) for text, style in line)


def to_html(lines: Iterable[StyledLine]) -> str:
    """Render lines as HTML. All text is escaped, so a run's output is never markup."""
    text = "\n".join("".join(_apply_css(text, style) for text, style in line) for line in lines)
    return f'<pre style="line-height:1.25">{text}</pre>'


def flow_pieces(pieces: Iterable[StyledPiece], width: int, first: int = 2) -> list[StyledLine]:
    """Put pieces next to each other and wrap them at `width`."""
    lines: list[list[StyledPiece]] = []
    used = 0
    for text, style in pieces:
        if not lines or used + 2 + display_width(text) > width:
            indent = first if not lines else first + 2
            lines.append([(" " * indent, ""), (text, style)])
            used = indent + display_width(text)
        else:
            lines[-1] += [("  ", ""), (text, style)]
            used += 2 + display_width(text)
    return [tuple(line) for line in lines]


def pad_text(text: str, width: int, right: bool = False) -> str:
    if display_width(text) > width:
        text = f"{cut_to_width(text, width - 1)}…"
    pad = " " * (width - display_width(text))
    return f"{pad}{text}" if right else f"{text}{pad}"


def truncate_line(line: StyledLine, width: int) -> StyledLine:
    if sum(display_width(text) for text, _ in line) <= width:
        return line
    pieces: list[StyledPiece] = []
    room = width - 1
    for text, style in line:
        if display_width(text) > room:
            return (*pieces, (f"{cut_to_width(text, room)}…", style))
        room -= display_width(text)
        pieces.append((text, style))
    return tuple(pieces)


Columns = Sequence[tuple[str, Sequence[str]]]
"""Each with its title, and one text for each row."""


def columns_width(columns: Columns) -> int:
    return sum(2 + max(map(display_width, (name, *texts))) for name, texts in columns)


def format_columns(
    columns: Columns,
    *,
    right: Collection[str] = (),
    max_width: int | None = None,
    style: Callable[[int, str], str] = lambda row, name: "",
) -> list[StyledLine]:
    """Align columns below their titles; `right` names those to align right, `style` gives the style of a cell."""
    aligned: list[list[StyledPiece]] = []
    for name, texts in columns:
        width = columns_width([(name, texts)]) - 2
        width = width if max_width is None else min(width, max_width)
        cells = [f"  {pad_text(text, width, name in right)}" for text in (name, *texts)]
        styles = ["dim", *(style(row, name) for row in range(len(texts)))]
        aligned.append([*zip(cells, styles, strict=True)])
    return [*zip(*aligned, strict=True)]


def _apply_codes(text: str, style: str) -> str:
    codes = ";".join(_STYLES[word][0] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text.strip() else text


def _apply_css(text: str, style: str) -> str:
    css = ";".join(_STYLES[word][1] for word in style.split())
    return f'<span style="{css}">{html.escape(text)}</span>' if css else html.escape(text)
