"""What workers printed, page by page: from the end by default, on to either side by offsets in bytes, with search.

Logs may be large, so they are read in pieces and never as a whole. On a store they are fetched as a whole, which is
all that a store can do.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from paceline._core.errors import StorageError
from paceline._storage.home import Home
from paceline._storage.store import Store
from paceline._view.model import LogFile, LogLine, LogPage

_PIECE = 1 << 20
_LONGEST = 4 << 20
"""Bytes up to which a line is kept together."""
_SHOWN = 1 << 16
"""Bytes of a line that are shown."""
_REST_S = 1.0
_LOG = re.compile(r"logs/attempt_(\d{1,9})/rank_(\d{1,9})\.log")
_VALIDATION = re.compile(r"logs/validation/([^/]+)\.log")


def files(home: Home, store: Store | None = None) -> tuple[LogFile, ...]:
    """The logs that there are: by attempt and rank, then those of validations."""
    found = []
    for path, num_bytes in _all(home, store):
        if (match := _LOG.fullmatch(path)) is not None:
            attempt, rank = int(match[1]), int(match[2])
            found.append((attempt, rank, path, num_bytes, f"attempt {attempt}, rank {rank}"))
    validations = sorted((p, n) for p, n in _all(home, store) if _VALIDATION.fullmatch(p))
    for number, (path, num_bytes) in enumerate(validations):
        found.append((0, number, path, num_bytes, f"validation of {PurePosixPath(path).stem}"))
    found.sort(key=lambda log: (log[0] == 0, log[0], log[1]))
    return tuple(LogFile(attempt=a, rank=r, path=p, num_bytes=n, name=name) for a, r, p, n, name in found)


def page(
    home: Home,
    attempt: int,
    rank: int,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int = 500,
    search: str | None = None,
    store: Store | None = None,
) -> LogPage:
    """Lines of one log: the last ones, those that end before an offset, or those that begin from one on.

    `attempt=0` is a validation, and `rank` its number among `files`. With `search`, only lines that contain it, in
    whichever case. `KeyError` where there is no such log.
    """
    if limit < 1:
        raise ValueError(f"limit={limit} lines: there has to be one at least")
    if before is not None and after is not None:
        raise ValueError("before and after are both given: a page goes on to one side")
    log = next((log for log in files(home, store) if (log.attempt, log.rank) == (attempt, rank)), None)
    if log is None:
        raise KeyError(f"{home.name} has no log of attempt {attempt}, rank {rank}")
    with _opened(home, log.path, store) as file:
        size = file.seek(0, io.SEEK_END)
        sought = search.casefold() if search else None
        if after is not None:
            return _forwards(file, min(max(0, after), size), size, limit, sought, _is_at_rest(file))
        return _backwards(file, size if before is None else min(max(0, before), size), size, limit, sought)


def inside(home: Home, path: str) -> Path | None:
    """A file of the run by its path below it; None for a path that leads out of it."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\0" in path or ".." in parts:
        return None
    root = home.layout.root
    found = root.joinpath(*parts)
    try:
        return found if found.resolve().is_relative_to(root.resolve()) else None
    except (OSError, RuntimeError):
        return None


def _forwards(file: BinaryIO, start: int, size: int, limit: int, sought: str | None, is_at_rest: bool) -> LogPage:
    lines: list[LogLine] = []
    end = start
    for first, block in _blocks(file, start, size):
        block_end = first + len(block)
        if block_end == size and not is_at_rest:
            # A line that is being written is left for the next time.
            block = block[: block.rfind(b"\n") + 1]
            block_end = first + len(block)
        for offset, line in _matching(block, sought):
            if len(lines) >= limit:
                break
            lines.append(LogLine(first + offset, _text(line)))
            end = first + offset + len(line)
        else:
            end = block_end
            continue
        break
    return LogPage(lines=tuple(lines), before=start or None, after=end, num_bytes=size)


def _backwards(file: BinaryIO, end: int, size: int, limit: int, sought: str | None) -> LogPage:
    lines: list[LogLine] = []
    first = end
    for start, block in _blocks_from_end(file, end):
        first = start
        found = list(_matching(block, sought))
        room = limit - len(lines)
        if len(found) > room:
            found = found[-room:] if room else []
            first = start + found[0][0] if found else lines[-1].offset
        lines += [LogLine(start + offset, _text(line)) for offset, line in reversed(found)]
        if len(lines) >= limit:
            first = lines[-1].offset
            break
    return LogPage(lines=tuple(reversed(lines)), before=first or None, after=end, num_bytes=size)


def _matching(block: bytes, sought: str | None) -> Iterator[tuple[int, bytes]]:
    """Of some whole lines, those that contain a text, with their offsets; all of them if none is sought."""
    start = 0
    if sought is not None and sought.isascii():
        # Found as bytes, and only the lines around looked at: most of a large log is no match.
        low, needle = block.lower(), sought.encode()
        while (at := low.find(needle, start)) >= 0:
            first, end = block.rfind(b"\n", start, at) + 1 or start, block.find(b"\n", at) + 1 or len(block)
            if sought in _text(block[first:end]).casefold():  # Else it was written over, by a progress bar.
                yield first, block[first:end]
            start = end
        return
    while start < len(block):
        end = block.find(b"\n", start) + 1 or len(block)
        if sought is None or sought in _text(block[start:end]).casefold():
            yield start, block[start:end]
        start = end


def _blocks(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines, about a piece of them at a time; one that is longer than some pieces comes in parts."""
    rest = b""
    while start < end:
        file.seek(start + len(rest))
        data = rest + file.read(min(_PIECE, end - start - len(rest)))
        cut = data.rfind(b"\n") + 1
        if start + len(data) >= end or (not cut and len(data) >= _LONGEST):
            cut = len(data)
        if cut:
            yield start, data[:cut]
        start, rest = start + cut, data[cut:]


def _blocks_from_end(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """The same from the last to the first."""
    rest = b""
    while end > 0:
        size = min(_PIECE, end - len(rest))
        start = end - len(rest) - size
        file.seek(start)
        data = file.read(size) + rest
        # What comes before the first end of a line may have begun further to the front.
        cut = data.find(b"\n", 0, len(data) - 1) + 1 if start > 0 else 0
        if start > 0 and not cut and len(data) < _LONGEST:
            rest = data
            continue
        yield start + cut, data[cut:]
        end, rest = start + cut, data[:cut]


def _text(line: bytes) -> str:
    """As it looks on a terminal: of a progress bar that writes over itself, the last state."""
    line = line.rstrip(b"\r\n") if line.endswith(b"\n") else line.rstrip(b"\r")
    line = line[line.rfind(b"\r") + 1 :]
    text = line[:_SHOWN].decode("utf-8", errors="replace")
    return text if len(line) <= _SHOWN else f"{text}... ({len(line)} bytes)"


def _is_at_rest(file: BinaryIO) -> bool:
    """Nobody has written to it for a while, so that its last line is what it is."""
    try:
        return time.time() - os.fstat(file.fileno()).st_mtime > _REST_S
    except io.UnsupportedOperation:  # Of a store: an object does not grow.
        return True


def _all(home: Home, store: Store | None) -> list[tuple[str, int]]:
    if home.address is not None:
        store = store if store is not None else home.store()
        return [(entry.key, entry.size) for entry in store.entries("logs")]
    root, found = home.layout.root, []
    for pattern in ("attempt_*/rank_*.log", "validation/*.log"):
        for path in home.layout.logs.glob(pattern):
            below = path.relative_to(root).as_posix()
            if inside(home, below) is None:
                continue
            try:
                found.append((below, path.stat().st_size))
            except FileNotFoundError:
                continue
    return found


def _opened(home: Home, path: str, store: Store | None) -> BinaryIO:
    if home.address is not None:
        store = store if store is not None else home.store()
        return io.BytesIO(store.read(path))
    found = inside(home, path)
    if found is None:
        raise StorageError(f"{home.layout.root / path} leads out of the run")
    return found.open("rb")
