"""Writes run directories with journals of any length, using the real `Journal`."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from paceline._control import events
from paceline._control.journal import Journal
from paceline._engine.messages import Reported, WorkerReady, WorkerReturned, WorkersStopped

BEGAN = 1.7e9
_FLUSH_EVERY = 1000


def write_run(path: Path, num_reports: int, num_metrics: int, *, ended: bool = True) -> None:
    """Write a run of one worker. Without `ended`, driver and worker were lost after the last report."""
    path.mkdir()
    names = [f"metric_{n}" for n in range(num_metrics)]
    journal = Journal(path / "journal.jsonl")
    journal.append(events.DriverStarted(1, 0, at=BEGAN, lease=1))
    journal.append(events.Timestamp(BEGAN))
    journal.append(WorkerReady(1, 0, 1))
    for step in range(num_reports):
        metrics = {name: math.sin(step / 1000 + n) + (step % 7) / 10 for n, name in enumerate(names)}
        at = BEGAN + step / 100
        journal.append(Reported(1, 0, step + 1, msgspec.Raw(msgspec.json.encode(metrics)), at, "train.py:10"))
        if step % _FLUSH_EVERY == 0:
            journal.flush()
    if ended:
        journal.append(WorkerReturned(1, 0, num_reports))
        journal.append(events.Timestamp(BEGAN + num_reports / 100))
        journal.append(WorkersStopped(1))
    journal.close()
