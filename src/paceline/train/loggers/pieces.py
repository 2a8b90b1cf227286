"""A file with one piece for each report, which always is a beginning of what the journal tells.

A driver writes it anew from the journal, beside the file that is there, and puts it in its place: nothing of a lost
driver is read, and one that was only paused goes on writing to a file that nobody sees. From then on pieces are added,
each by one write. Where reports are made again, the file is cut back to those before.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from pathlib import Path

from paceline.train.callbacks import LoggedReport


class Pieces:
    def __init__(self, path: Path, head: bytes = b"") -> None:
        self.path = path
        self._part = path.with_name(f".{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._is_in_place = False
        self._size = 0
        self._attempt = 0
        # Of each piece the number of its report, and where it begins; a report takes sixteen bytes of memory.
        self._numbers = array("Q")
        self._begins = array("Q")
        self._write(head)

    def is_again(self, report: LoggedReport) -> bool:
        """Whether this report replaces one that is there."""
        return report.attempt > self._attempt and bool(self._numbers) and report.number <= self._numbers[-1]

    def cut(self, report: LoggedReport) -> None:
        """Take back this report and those after it."""
        at = bisect_left(self._numbers, report.number)
        if at < len(self._numbers):
            self._size = self._begins[at]
            os.ftruncate(self._fd, self._size)
            del self._numbers[at:], self._begins[at:]

    def add(self, report: LoggedReport, piece: bytes) -> None:
        self._attempt = max(self._attempt, report.attempt)
        self._numbers.append(report.number)
        self._begins.append(self._size)
        self._write(piece)

    def put_in_place(self) -> None:
        """From here on it is seen."""
        os.fsync(self._fd)
        self._part.rename(self.path)
        self._is_in_place = True
        _sync_directory(self.path.parent)

    def rewrite(self, pieces: list[bytes], head: bytes) -> None:
        """Others in their stead, one for each: in a new file, which takes the place of this one when it is whole."""
        assert len(pieces) == len(self._numbers)
        old, part = self._fd, self._part.with_name(f"{self._part.name}.new")
        self._fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._size = 0
            self._write(head)
            for at, piece in enumerate(pieces):
                self._begins[at] = self._size
                self._write(piece)
            if not self._is_in_place:
                part.rename(self._part)
            elif _is_at(old, self.path):
                os.fsync(self._fd)
                part.rename(self.path)
            else:
                part.unlink()  # Another driver has put its own there: this one is on its way out.
        finally:
            os.close(old)

    def read(self) -> list[bytes]:
        """The pieces that are there."""
        ends = [*self._begins[1:], self._size] if self._begins else []
        return [os.pread(self._fd, end - begin, begin) for begin, end in zip(self._begins, ends, strict=True)]

    def close(self) -> None:
        if self._fd >= 0:
            try:
                os.fsync(self._fd)
            finally:
                os.close(self._fd)
                self._fd = -1

    def _write(self, data: bytes) -> None:
        try:
            while data:
                written = os.pwrite(self._fd, data, self._size)
                self._size += written
                data = data[written:]
        except OSError:
            os.close(self._fd)
            self._fd = -1
            raise


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
