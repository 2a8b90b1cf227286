"""A file with one piece per report, whose content is always a prefix of what the journal says.

A driver writes a new file from the journal, beside the existing one, and then replaces that. So nothing of a lost
driver is read, and a driver that was only paused keeps writing to a file that nobody sees. After that, each piece is
appended with one write. When reports are repeated, the file is truncated to those before.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from pathlib import Path

from paceline.train.callbacks import LoggedReport


class ReportFile:
    def __init__(self, path: Path, head: bytes = b"") -> None:
        self.path = path
        self._partial_path = path.with_name(f".{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._partial_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._is_published = False
        self._size = 0
        self._attempt = 0
        # The number and the offset of each piece: sixteen bytes of memory per report.
        self._numbers = array("Q")
        self._offsets = array("Q")
        self._write(head)

    def is_replacement(self, report: LoggedReport) -> bool:
        """Whether this report replaces an existing one."""
        return report.attempt > self._attempt and bool(self._numbers) and report.number <= self._numbers[-1]

    def discard_from(self, report: LoggedReport) -> None:
        """Remove this report and all later ones."""
        at = bisect_left(self._numbers, report.number)
        if at < len(self._numbers):
            self._size = self._offsets[at]
            os.ftruncate(self._fd, self._size)
            del self._numbers[at:], self._offsets[at:]

    def add(self, report: LoggedReport, piece: bytes) -> None:
        self._attempt = max(self._attempt, report.attempt)
        self._numbers.append(report.number)
        self._offsets.append(self._size)
        self._write(piece)

    def publish(self) -> None:
        """Make the file visible under its name."""
        os.fsync(self._fd)
        self._partial_path.rename(self.path)
        self._is_published = True
        _sync_directory(self.path.parent)

    def rewrite(self, pieces: list[bytes], head: bytes) -> None:
        """Replace each piece with a new one, in a new file that replaces this one when it is complete."""
        assert len(pieces) == len(self._numbers)
        old, part = self._fd, self._partial_path.with_name(f"{self._partial_path.name}.new")
        self._fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._size = 0
            self._write(head)
            for at, piece in enumerate(pieces):
                self._offsets[at] = self._size
                self._write(piece)
            if not self._is_published:
                part.rename(self._partial_path)
            elif _is_file_at(old, self.path):
                os.fsync(self._fd)
                part.rename(self.path)
            else:
                part.unlink()  # Another driver has replaced the file, so this one is about to exit.
        finally:
            os.close(old)

    def read(self) -> list[bytes]:
        """Return the pieces in the file."""
        ends = [*self._offsets[1:], self._size] if self._offsets else []
        return [os.pread(self._fd, end - begin, begin) for begin, end in zip(self._offsets, ends, strict=True)]

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


def _is_file_at(fd: int, path: Path) -> bool:
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
