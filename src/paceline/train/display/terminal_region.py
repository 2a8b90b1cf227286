"""A few lines at the bottom of a terminal that are redrawn in place, below all other output.

While they are shown, whatever Python prints or logs is written above them, in whole lines. The cursor is never hidden
and the screen never switched, so a killed process leaves nothing to restore. A process has at most one region at a
time.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from paceline.train.display.styled_lines import StyledLine, to_plain_text, to_terminal_text

_UP, _CLEAR = "\x1b[1A", "\x1b[2K"

TERMINAL_LOCK = threading.RLock()
"""Protects who draws on the terminal and what replaces the standard streams. Hold it while looking up a stream and
writing to it: a line written directly to the terminal just after a region was drawn would be overwritten."""
_drawn_regions: list[TerminalRegion] = []
"""The region that is drawn, if any."""


def write_to(stream: TextIO | None, text: str) -> None:
    """Write and flush. A standard stream is None if the process was started without it."""
    if stream is not None:
        stream.write(text)
        stream.flush()


def can_draw_on(stream: TextIO, terminal: str | None) -> bool:
    """`terminal` is the value of `TERM`."""
    if terminal in (None, "dumb", "unknown") or isinstance(stream, _AboveRegionStream):
        return False
    try:
        return (
            stream.isatty()
            and (stream.encoding or "").lower().replace("-", "") == "utf8"
            and terminal_size(stream)[0] > 0
        )
    except (AttributeError, ValueError):  # A custom stream, or a closed one.
        return False


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns and lines; zeros if unknown."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return 0, 0
    return size.columns, size.lines


def is_same_terminal(one: TextIO | None, other: TextIO) -> bool:
    """Whether both streams write to the same terminal."""
    try:
        return one is not None and one.isatty() and os.fstat(one.fileno()).st_rdev == os.fstat(other.fileno()).st_rdev
    except (AttributeError, OSError, ValueError):  # A custom stream, or a closed one.
        return False


class TerminalRegion:
    """The redrawn lines. Used by several threads, all under `TERMINAL_LOCK`."""

    def __init__(self, stream: TextIO, colour: bool) -> None:
        self._stream = stream
        self._colour = colour
        self._lines: list[str] = []
        self.is_drawn = False
        self._is_closed = False
        self._redirection = contextlib.ExitStack()

    def draw(self, lines: Sequence[StyledLine]) -> bool:
        """Draw the lines; return False if another region is drawn or this process is in the background."""
        with TERMINAL_LOCK:
            if self._is_closed or not _is_in_foreground(self._stream):
                self._lines = []
                return False
            if not self.is_drawn:
                if _drawn_regions:
                    return False
                self.is_drawn = True
                _drawn_regions.append(self)
                atexit.register(self.close)
                self._redirection.enter_context(_redirect_output_above(self._stream, self))
            _, height = terminal_size(self._stream)
            render = to_terminal_text if self._colour else to_plain_text
            rendered = [render(line) for line in lines[: max(1, height - 1)]]
            if rendered != self._lines:
                self._paint("", rendered)
            return True

    def write(self, text: str) -> None:
        """Write whole lines above whatever region is drawn now, even if this one is closed."""
        with TERMINAL_LOCK:
            region = self if self.is_drawn or not _drawn_regions else _drawn_regions[0]
            region._paint(text, region._lines)

    def close(self) -> None:
        """Remove the lines. May be called more than once."""
        with TERMINAL_LOCK:
            self._is_closed = True
            if self.is_drawn:
                self.is_drawn = False
                try:
                    self._paint("", [])
                finally:
                    atexit.unregister(self.close)
                    _drawn_regions.remove(self)
                    self._redirection.close()

    def _paint(self, above: str, lines: list[str]) -> None:
        """Write everything at once, so that no other output gets in between."""
        erase = f"\r{_CLEAR}" + f"{_UP}{_CLEAR}" * len(self._lines) if self._lines else ""
        self._lines = lines
        self._stream.write(erase + above + "".join(f"{line}\n" for line in lines))
        self._stream.flush()


class _AboveRegionStream:
    """Replaces a stream: writes its text above a region as soon as a line is complete."""

    def __init__(self, stream: TextIO, region: TerminalRegion) -> None:
        self._stream = stream
        self._region = region
        self._partial: dict[int, str] = {}
        """By thread, because `print` writes a line and its newline separately."""

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        with TERMINAL_LOCK:
            whole, newline, rest = (self._partial.pop(thread, "") + text).rpartition("\n")
            if rest:
                self._partial[thread] = rest
            if newline:
                self._region.write(f"{whole}\n")
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing: an incomplete line waits for the rest."""

    def take_partial(self) -> str:
        with TERMINAL_LOCK:
            text, self._partial = "".join(self._partial.values()), {}
            return text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _redirect_output_above(terminal: TextIO, region: TerminalRegion) -> Iterator[None]:
    """Write printed output above a region during the block, unless it goes to another terminal or file."""
    before = {"stdout": sys.stdout, "stderr": sys.stderr}
    in_place = {}
    for name, stream in before.items():
        if stream is terminal or is_same_terminal(stream, terminal):
            in_place[name] = _AboveRegionStream(stream, region)
            setattr(sys, name, in_place[name])
    logged = [
        (handler, handler.stream, in_place[name])
        for handler in _stream_handlers()
        for name in in_place
        if handler.stream is before[name]
    ]
    for handler, _, above in logged:
        handler.setStream(above)
    try:
        yield
    finally:
        for handler, stream, above in logged:
            if handler.stream is above:
                handler.setStream(stream)
        for name, above in in_place.items():
            if getattr(sys, name) is above:  # Otherwise somebody has replaced the stream since.
                setattr(sys, name, before[name])
            if text := above.take_partial():
                before[name].write(text)
                before[name].flush()


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    return [
        handler
        for logger in loggers
        if isinstance(logger, logging.Logger)
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler)
    ]


def _is_in_foreground(stream: TextIO) -> bool:
    """Whether this process is in the foreground of the terminal; True if the terminal has no session."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return True
