"""Pages through workers' logs: from the end by default, in both directions by byte offset, with search.

Logs may be large, so they are read in pieces, never as a whole. From a store they are fetched as a whole, since a store
offers nothing else.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from paceline._core.arguments import check_int
from paceline._core.errors import StorageError
from paceline._storage.log_files import find_data
from paceline._storage.run_location import RunLocation
from paceline._storage.store import Store
from paceline._view.model import LogFile, LogLine, LogPage

_PIECE = 1 << 20
_MAX_LINE_BYTES = 4 << 20
"""Lines longer than this may be split."""
_MAX_SHOWN_BYTES = 1 << 16
_IDLE_S = 1.0
_LOG_PATH = re.compile(r"logs/attempt_(\d{1,9})/rank_(\d{1,9})\.log")
_VALIDATION_LOG_PATH = re.compile(r"logs/validation/([^/]+)\.log")


def list_log_files(location: RunLocation, store: Store | None = None) -> tuple[LogFile, ...]:
    """Return the existing logs: by attempt and rank, then those of validations."""
    files, num_validations = [], 0
    for path, num_bytes in sorted(_find_log_files(location, store)):
        if (match := _LOG_PATH.fullmatch(path)) is not None:
            attempt, rank = int(match[1]), int(match[2])
            name = f"attempt {attempt}, rank {rank}"
        elif _VALIDATION_LOG_PATH.fullmatch(path):
            attempt, rank, name = 0, num_validations, f"validation of {PurePosixPath(path).stem}"
            num_validations += 1
        else:
            continue
        files.append(LogFile(attempt=attempt, rank=rank, path=path, num_bytes=num_bytes, name=name))
    return tuple(sorted(files, key=lambda file: (file.attempt == 0, file.attempt, file.rank)))


def read_log_page(
    location: RunLocation,
    attempt: int,
    rank: int,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int = 500,
    search: str | None = None,
    store: Store | None = None,
) -> LogPage:
    """Return lines of one log: the last ones, those that end before an offset, or those that start at or after one.

    `attempt=0` means a validation, and `rank` is its index in `list_log_files`. With `search`, returns only lines that
    contain it, ignoring case. Raises `KeyError` if there is no such log.
    """
    check_int("limit", limit, at_least=1)
    if before is not None and after is not None:
        raise ValueError("before and after cannot be combined")
    log = next((log for log in list_log_files(location, store) if (log.attempt, log.rank) == (attempt, rank)), None)
    if log is None:
        raise KeyError(f"{location.name} has no log of attempt {attempt}, rank {rank}")
    with _open_log(location, log.path, store) as file:
        size = file.seek(0, io.SEEK_END)
        needle = search.casefold() if search else None
        if after is not None:
            return _read_forwards(file, min(max(0, after), size), size, limit, needle, _is_idle(file))
        return _read_backwards(file, size if before is None else min(max(0, before), size), size, limit, needle)


def resolve_inside(location: RunLocation, path: str) -> Path | None:
    """Return a file of the run by its path below it; None if the path leads out of the run."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\0" in path or ".." in parts:
        return None
    root = location.layout.root
    target = root.joinpath(*parts)
    try:
        return target if target.resolve().is_relative_to(root.resolve()) else None
    except (OSError, RuntimeError):
        return None


def _read_forwards(file: BinaryIO, start: int, size: int, limit: int, needle: str | None, is_at_rest: bool) -> LogPage:
    lines: list[LogLine] = []
    end = start
    for first, block in _iter_blocks(file, start, size):
        block_end = first + len(block)
        if block_end == size and not is_at_rest:
            # Leave a line that is still being written for the next call.
            block = block[: block.rfind(b"\n") + 1]
            block_end = first + len(block)
        for offset, line in _iter_matching(block, needle):
            if len(lines) >= limit:
                break
            lines.append(LogLine(first + offset, _line_text(line)))
            end = first + offset + len(line)
        else:
            end = block_end
            continue
        break
    return LogPage(lines=tuple(lines), before=start or None, after=end, num_bytes=size)


def _read_backwards(file: BinaryIO, end: int, size: int, limit: int, needle: str | None) -> LogPage:
    lines: list[LogLine] = []
    first = end
    for start, block in _iter_blocks_from_end(file, end):
        first = start
        matching = list(_iter_matching(block, needle))
        num_missing = limit - len(lines)
        if len(matching) > num_missing:
            matching = matching[-num_missing:] if num_missing else []
            first = start + matching[0][0] if matching else lines[-1].offset
        lines += [LogLine(start + offset, _line_text(line)) for offset, line in reversed(matching)]
        if len(lines) >= limit:
            first = lines[-1].offset
            break
    return LogPage(lines=tuple(reversed(lines)), before=first or None, after=end, num_bytes=size)


def _iter_matching(block: bytes, needle: str | None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a block that contain a text, with their offsets; all lines if `needle` is None."""
    start = 0
    if needle is not None and needle.isascii():
        # Search in bytes, and decode only the lines around a hit: most of a large log does not match.
        low, pattern = block.lower(), needle.encode()
        while (at := low.find(pattern, start)) >= 0:
            first, end = block.rfind(b"\n", start, at) + 1 or start, block.find(b"\n", at) + 1 or len(block)
            if needle in _line_text(block[first:end]).casefold():  # Else a progress bar overwrote it.
                yield first, block[first:end]
            start = end
        return
    while start < len(block):
        end = block.find(b"\n", start) + 1 or len(block)
        if needle is None or needle in _line_text(block[start:end]).casefold():
            yield start, block[start:end]
        start = end


def _iter_blocks(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, about one piece each; a line longer than several pieces is split."""
    for first, last in find_data(file, end):
        if last > start:
            yield from _iter_blocks_between(file, max(first, start), last)


def _iter_blocks_between(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    rest = b""
    while start < end:
        file.seek(start + len(rest))
        data = rest + file.read(min(_PIECE, end - start - len(rest)))
        cut = data.rfind(b"\n") + 1
        if start + len(data) >= end or (not cut and len(data) >= _MAX_LINE_BYTES):
            cut = len(data)
        if cut:
            yield start, data[:cut]
        start, rest = start + cut, data[cut:]


def _iter_blocks_from_end(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """The same from the last block to the first."""
    for first, last in reversed(find_data(file, end)):
        yield from _iter_blocks_backwards(file, first, last)


def _iter_blocks_backwards(file: BinaryIO, first: int, end: int) -> Iterator[tuple[int, bytes]]:
    rest = b""
    while end > first:
        size = min(_PIECE, end - first - len(rest))
        start = end - len(rest) - size
        file.seek(start)
        data = file.read(size) + rest
        # Text before the first newline may belong to a line that starts earlier.
        cut = data.find(b"\n", 0, len(data) - 1) + 1 if start > first else 0
        if start > first and not cut and len(data) < _MAX_LINE_BYTES:
            rest = data
            continue
        yield start + cut, data[cut:]
        end, rest = start + cut, data[:cut]


def _line_text(line: bytes) -> str:
    """Return a line as a terminal shows it: of a progress bar that overwrites itself, the last state."""
    line = line.lstrip(b"\0")  # The end of what was left out of a large log.
    line = line.rstrip(b"\r\n") if line.endswith(b"\n") else line.rstrip(b"\r")
    line = line[line.rfind(b"\r") + 1 :]
    text = line[:_MAX_SHOWN_BYTES].decode("utf-8", errors="replace")
    return text if len(line) <= _MAX_SHOWN_BYTES else f"{text}... ({len(line)} bytes)"


def _is_idle(file: BinaryIO) -> bool:
    """Whether nobody has written to the file for a while, so that its last line is complete."""
    try:
        return time.time() - os.fstat(file.fileno()).st_mtime > _IDLE_S
    except io.UnsupportedOperation:  # From a store: an object does not grow.
        return True


def _find_log_files(location: RunLocation, store: Store | None) -> list[tuple[str, int]]:
    if location.address is not None:
        store = store if store is not None else location.open_store()
        return [(entry.key, entry.size) for entry in store.list_entries("logs")]
    root, files = location.layout.root, []
    for pattern in ("attempt_*/rank_*.log", "validation/*.log"):
        for path in location.layout.logs.glob(pattern):
            below = path.relative_to(root).as_posix()
            if resolve_inside(location, below) is not None:
                with contextlib.suppress(FileNotFoundError):
                    files.append((below, path.stat().st_size))
    return files


def _open_log(location: RunLocation, path: str, store: Store | None) -> BinaryIO:
    if location.address is not None:
        store = store if store is not None else location.open_store()
        return io.BytesIO(store.read(path))
    target = resolve_inside(location, path)
    if target is None:
        raise StorageError(f"{location.layout.root / path} is outside the run")
    return target.open("rb")
