"""Writes run directories with journals of any length, and what a driver leaves beside them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline._control import events
from paceline._control.events import Event
from paceline._control.journal import Journal
from paceline._control.journal_snapshot import EventHistory, SnapshotFile, take_snapshot
from paceline._control.run import Run
from paceline._control.step import step, step_reports
from paceline._engine.messages import Reported, WorkerReady, WorkerReturned, WorkersStopped
from paceline._storage.lease import UNFENCED
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_location import RunLocation
from paceline._view.journal.outline import make_outline
from paceline.train.driver.run_session import SHORTENED_BYTES, shorten_journal

BEGAN = 1.7e9
_FLUSH_EVERY = 1000


class _Driver:
    """Writes events as a controller does."""

    def __init__(self, path: Path) -> None:
        self.layout = RunLayout(path)
        self.journal = Journal(self.layout.journal)
        self._run, self._history = Run(), EventHistory()
        self._snapshots = SnapshotFile(self.layout, 0, make_outline)

    def add(self, batch: Sequence[Event]) -> None:
        at = 0
        while at < len(batch):
            self._run, _, at = step_reports(self._run, batch, at)
            if at < len(batch):
                self._run, at = step(self._run, batch[at])[0], at + 1
        for event in batch:
            self.journal.append(event)
            self._history.add(event)
        self.journal.flush()
        if self._snapshots.is_due(self.journal.length):
            self._snapshots.mark_written(self.journal.length)
            self.write_snapshot()

    def write_snapshot(self, summary: bytes = b"null") -> None:
        snapshot = take_snapshot(self._run, self._history)
        assert snapshot is not None
        snapshot = msgspec.structs.replace(snapshot, summary=msgspec.Raw(summary))
        with self.layout.journal.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            self._snapshots.write(snapshot, file.fileno(), length, self.journal.num_lines)


def write_run(path: Path, num_reports: int, num_metrics: int, *, ended: bool = True) -> None:
    """Write a run of one worker. Without `ended`, driver and worker were lost after the last report."""
    path.mkdir()
    names = [f"metric_{n}" for n in range(num_metrics)]
    driver = _Driver(path)
    driver.add([events.DriverStarted(1, 0, at=BEGAN, lease=1), events.Timestamp(BEGAN), WorkerReady(1, 0, 1)])
    batch: list[Event] = []
    for step_number in range(num_reports):
        metrics = {name: math.sin(step_number / 1000 + n) + (step_number % 7) / 10 for n, name in enumerate(names)}
        raw = msgspec.Raw(msgspec.json.encode(metrics))
        batch.append(Reported(1, 0, step_number + 1, raw, BEGAN + step_number / 100, "train.py:10"))
        if len(batch) == _FLUSH_EVERY:
            driver.add(batch)
            batch = []
    driver.add(batch)
    if ended:
        last = events.Timestamp(BEGAN + num_reports / 100)
        driver.add([WorkerReturned(1, 0, num_reports), last, WorkersStopped(1)])
    driver.journal.close()
    if ended and driver.journal.length >= SHORTENED_BYTES:
        location = RunLocation.from_path(str(path))
        shorten_journal(location, location.open_run_store_for_reading(), UNFENCED, driver.write_snapshot)
