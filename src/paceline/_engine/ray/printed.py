"""What a worker on another machine printed, brought to the driver where the log is no file that both can see.

A run in a store has a spool directory on each machine, and its logs lie there. So the actor reads on in the file and
hands on what is new, a piece at a time, with what the worker says; the driver writes it to a file of its own, where
the terminal looks, and which goes to the store at the end.
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline._core.system import make_private_dirs

PIECE = 256 << 10
BACKLOG = 8 << 20
"""Who prints faster than it can be brought over loses what lies between, and that is said in its log."""


class Printed:
    """The log of one worker, read from where it was read last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def taken(self) -> bytes:
        """The next piece; empty where there is nothing new."""
        try:
            size = os.stat(self._path).st_size
        except FileNotFoundError:
            return b""
        if size <= self._position:
            return b""
        note = b""
        if size - self._position > BACKLOG:
            left_out = size - self._position - BACKLOG // 2
            note = f"\n... {left_out} bytes that were printed here are left out ...\n".encode()
            self._position += left_out
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read(PIECE)
        self._position += len(data)
        return note + data


def append(path: Path, data: bytes) -> None:
    """Write a piece to the driver's own file."""
    make_private_dirs(path.parent)
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)
