"""Brings the log of a worker on another machine to the driver, if they share no filesystem.

A run in a store has a spool directory on each machine, which holds its logs. The actor tails the file and forwards new
output in pieces, along with the worker's messages. The driver writes it to a file of its own, which the terminal view
reads and which is uploaded to the store at the end.
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline._core.system import make_private_dirs

MAX_PIECE_BYTES = 256 << 10
MAX_BACKLOG_BYTES = 8 << 20
"""Output that is printed faster than it can be forwarded is dropped; a note in the log says so."""


class WorkerLogTail:
    """Reads the log of one worker incrementally."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read_next(self) -> bytes:
        """Return the next piece; empty if there is nothing new."""
        try:
            size = os.stat(self._path).st_size
        except FileNotFoundError:
            return b""
        if size <= self._position:
            return b""
        note = b""
        if size - self._position > MAX_BACKLOG_BYTES:
            left_out = size - self._position - MAX_BACKLOG_BYTES // 2
            note = f"\n... {left_out} bytes that were printed here are left out ...\n".encode()
            self._position += left_out
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read(MAX_PIECE_BYTES)
        self._position += len(data)
        return note + data


def append_to_log(path: Path, data: bytes) -> None:
    """Append a piece to the driver's own file."""
    make_private_dirs(path.parent)
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)
