"""A few lines at the end of a terminal that are drawn again and again, below all that is printed meanwhile.

What Python prints while they are there, by `print` or through `logging`, is put above them, in whole lines. The cursor
is never hidden and the screen never switched, so there is nothing to restore when the process is killed. There is one
region at a time in a process.
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

from paceline.train.block import Line, plain

_UP, _CLEAR = "\x1b[1A", "\x1b[2K"
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

_one_at_a_time = threading.Lock()

its_end = threading.RLock()
"""Of the terminal: who draws there, and in whose place the standard streams stand. Whoever looks one up and writes to
it holds this meanwhile; a line that went to the terminal itself just after a region was drawn would be drawn over."""
_drawn: list[Region] = []
"""The region that is, if there is one; a search's table is none."""


def taken() -> bool:
    """Whether the end of the terminal is now the caller's to draw on; `given_back` once it is done."""
    return _one_at_a_time.acquire(blocking=False)


def given_back() -> None:
    _one_at_a_time.release()


def can_be_drawn_on(stream: TextIO, terminal: str | None) -> bool:
    """`terminal` is its kind, as `TERM` says it."""
    if terminal in (None, "dumb", "unknown") or isinstance(stream, _Above):
        return False
    try:
        return stream.isatty() and (stream.encoding or "").lower().replace("-", "") == "utf8" and size(stream)[0] > 0
    except (AttributeError, ValueError):  # A stream of somebody's own, or a closed one.
        return False


def size(stream: TextIO) -> tuple[int, int]:
    """Columns and lines; none where it does not say."""
    try:
        found = os.get_terminal_size(stream.fileno())
    except OSError:
        return 0, 0
    return found.columns, found.lines


def is_same(one: TextIO | None, other: TextIO) -> bool:
    """Whether what is written to one stream is seen on the terminal of the other."""
    try:
        return one is not None and one.isatty() and os.fstat(one.fileno()).st_rdev == os.fstat(other.fileno()).st_rdev
    except (AttributeError, OSError, ValueError):  # A stream of somebody's own, or a closed one.
        return False


class Region:
    """Used by several threads, all under `its_end`."""

    def __init__(self, stream: TextIO, colour: bool) -> None:
        self._stream = stream
        self._colour = colour
        self._lines: list[str] = []
        self._is_taken = False
        self._is_closed = False
        self._put_above = contextlib.ExitStack()

    @property
    def is_drawn(self) -> bool:
        return self._is_taken

    def draw(self, lines: Sequence[Line]) -> bool:
        """Whether it could be; not where another region is drawn, or this process is in the background."""
        with its_end:
            if self._is_closed or not _is_in_foreground(self._stream):
                self._lines = []
                return False
            if not self._is_taken:
                if not taken():
                    return False
                self._is_taken = True
                _drawn.append(self)
                atexit.register(self.close)
                self._put_above.enter_context(_all_put_above(self._stream, self))
            _, height = size(self._stream)
            shown = [self._text(line) for line in lines[: max(1, height - 1)]]
            if shown != self._lines:
                self._paint("", shown)
            return True

    def write(self, text: str) -> None:
        """Whole lines; above whatever region is there now, if this one is not any more."""
        with its_end:
            there = self if self._is_taken or not _drawn else _drawn[0]
            there._paint(text, there._lines)

    def close(self) -> None:
        """The lines vanish. May be called more than once."""
        with its_end:
            self._is_closed = True
            if self._is_taken:
                self._is_taken = False
                try:
                    self._paint("", [])
                finally:
                    atexit.unregister(self.close)
                    _drawn.remove(self)
                    given_back()
                    self._put_above.close()

    def _paint(self, above: str, lines: list[str]) -> None:
        """In one write, so that nothing of others gets between."""
        gone = f"\r{_CLEAR}" + f"{_UP}{_CLEAR}" * len(self._lines) if self._lines else ""
        self._lines = lines
        self._stream.write(gone + above + "".join(f"{line}\n" for line in lines))
        self._stream.flush()

    def _text(self, line: Line) -> str:
        if not self._colour:
            return plain(line).rstrip()
        return "".join(_styled(text, style) for text, style in line)


class _Above:
    """In the place of a stream: what is written to it comes above a region, as soon as a line is whole."""

    def __init__(self, stream: TextIO, region: Region) -> None:
        self._stream = stream
        self._region = region
        self._partial: dict[int, str] = {}
        """By thread: `print` writes a line and its end one after the other."""

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        with its_end:
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
        """What is no whole line waits for the rest of it."""

    def left(self) -> str:
        with its_end:
            left, self._partial = "".join(self._partial.values()), {}
            return left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _all_put_above(terminal: TextIO, region: Region) -> Iterator[None]:
    """Put what is printed above a region for as long as a block lasts, unless it goes elsewhere."""
    before = {"stdout": sys.stdout, "stderr": sys.stderr}
    in_place = {}
    for name, stream in before.items():
        if stream is terminal or is_same(stream, terminal):
            in_place[name] = _Above(stream, region)
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
            if getattr(sys, name) is above:  # Or somebody has put another one there since.
                setattr(sys, name, before[name])
            if left := above.left():
                before[name].write(left)
                before[name].flush()


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    loggers = [logging.root, *(known for known in logging.root.manager.loggerDict.values())]
    return [
        handler
        for logger in loggers
        if isinstance(logger, logging.Logger)
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler)
    ]


def _is_in_foreground(stream: TextIO) -> bool:
    """Of its terminal; one that belongs to no session has no foreground."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return True


def _styled(text: str, style: str) -> str:
    codes = ";".join(_CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text.strip() else text
