"""Runs as they lie on a disk: read event by event, or written line by line."""

from pathlib import Path
from typing import Any

import msgspec

from paceline._control import events, journal
from paceline._control.events import Event, Reported
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.codec import seal_line


def read_events(run: Path | str, *kinds: type) -> list[Any]:
    """The events in the journal of the run in this directory: all, or those of some kinds."""
    return [event for event in journal.read_events(Path(run, "journal.jsonl")) if isinstance(event, kinds or object)]


class WrittenRun:
    """A run's directory, and a driver that writes it."""

    def __init__(self, root: Path, *written: Event) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.write(*written)

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    def write(self, *written: Event) -> None:
        with self.journal.open("ab") as file:
            file.write(b"".join(seal_line(events.encode_event(event)) for event in written))


def started(size: int = 1, at: float = 1000.0, **more: object) -> list[Event]:
    """A driver, and all workers ready in attempt 1."""
    attempt = more.pop("attempt", 1)
    ready = [events.WorkerReady(attempt, rank, 100 + rank) for rank in range(size)]
    return [events.DriverStarted(size, more.pop("max_failures", 0), at=at, **more), events.Timestamp(at + 1), *ready]


def report(seq: int, metrics: dict, *, attempt: int = 1, rank: int = 0, at: float | None = None, **more) -> Reported:
    raw = msgspec.Raw(msgspec.json.encode(metrics))
    return Reported(attempt, rank, seq, raw, at if at is not None else 1001.0 + seq, "train.py:41", **more)


def committed(seq: int, *, attempt: int = 1, metrics: bytes = b"{}", name: str | None = None) -> events.Committed:
    return events.Committed(CheckpointRecord(seq, name or f"checkpoint_{seq:06d}", attempt, msgspec.Raw(metrics), 10))


def ended(size: int = 1, num_reports: int = 0, attempt: int = 1, at: float = 2000.0) -> list[Event]:
    returned = [events.WorkerReturned(attempt, rank, num_reports) for rank in range(size)]
    return [events.Timestamp(at), *returned, events.WorkersStopped(attempt)]
