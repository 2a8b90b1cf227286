"""What a tracker's logger remembers of a run in a small file, for the driver that continues it: see `TrackerRecord`."""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from paceline.train.callbacks import LoggedReport

_FLUSH_DELAY_S = 30.0
"""W&B writes its data every 15 s; unwritten data is lost if the driver is killed."""


class TrackerRecord:
    """The id of the run at the tracker, and the last report that the tracker has certainly written."""

    def __init__(self, path: Path, continues: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        words = os.read(self._fd, 200).decode("ascii", "replace").split() if continues else []
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            self.run_id, self._written = words[0], (int(words[1]), int(words[2]))
        else:
            self.run_id, self._written = hashlib.sha256(os.urandom(16)).hexdigest()[:16], (0, 0)
            self._write()
        self._unconfirmed: deque[tuple[float, tuple[int, int]]] = deque()
        """Time, attempt and number of the logged reports: at most one entry per second."""

    def is_new(self, report: LoggedReport) -> bool:
        return (report.attempt, report.number) > self._written

    def mark_logged(self, report: LoggedReport) -> None:
        now = self._now()
        is_same_second = bool(self._unconfirmed) and now - self._unconfirmed[-1][0] < 1
        at = self._unconfirmed.pop()[0] if is_same_second else now
        self._unconfirmed.append((at, (report.attempt, report.number)))
        # The last report of an entry may be up to a second later than the entry's time.
        while self._unconfirmed and self._unconfirmed[0][0] + 1 + _FLUSH_DELAY_S <= now:
            self._written = self._unconfirmed.popleft()[1]
            self._write()

    def mark_all_written(self) -> None:
        if self._unconfirmed:
            self._written = self._unconfirmed.pop()[1]
            self._write()

    def close(self) -> None:
        os.close(self._fd)

    def _write(self) -> None:
        attempt, number = self._written
        os.pwrite(self._fd, f"{self.run_id} {attempt:010d} {number:020d}\n".encode(), 0)
