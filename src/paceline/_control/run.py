"""Where a run is: its phases, and what each of them knows. Values only; `step` moves between them.

What matters only while workers run is a field of `Running` and vanishes with it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from paceline._control.events import Retention
from paceline._engine.messages import CheckpointRecord, Failure, Staged

RECENT = 64
_CHUNK = 64

Ending = Literal["complete", "interrupted", "failed"]


class Progress(msgspec.Struct, frozen=True):
    """The number of the last report of every rank, and the least of these numbers.

    Kept in chunks, so that one report copies some tens of numbers however many ranks there are.
    """

    chunks: tuple[tuple[int, ...], ...]
    least: int
    num_at_least: int

    @classmethod
    def of(cls, size: int, seq: int) -> Progress:
        full, rest = divmod(size, _CHUNK)
        chunks = ((seq,) * _CHUNK,) * full + (((seq,) * rest,) if rest else ())
        return cls(chunks, seq, size)

    def __getitem__(self, rank: int) -> int:
        return self.chunks[rank // _CHUNK][rank % _CHUNK]

    def advanced(self, rank: int, seq: int) -> Progress:
        at, offset = divmod(rank, _CHUNK)
        chunk = self.chunks[at]
        before = chunk[offset]
        chunk = chunk[:offset] + (seq,) + chunk[offset + 1 :]
        chunks = self.chunks[:at] + (chunk,) + self.chunks[at + 1 :]
        if before > self.least:
            return Progress(chunks, self.least, self.num_at_least)
        if self.num_at_least > 1:
            return Progress(chunks, self.least, self.num_at_least - 1)
        least = min(map(min, chunks))
        return Progress(chunks, least, sum(chunk.count(least) for chunk in chunks))


class Pending(msgspec.Struct, frozen=True):
    """A checkpoint that some rank has announced and that is not yet asked to be committed."""

    seq: int
    name: str
    rank: int
    """The first rank that announced it, and where in the user's code."""
    where: str
    metrics: msgspec.Raw
    num_announced: int = 1
    parts: tuple[Staged, ...] = ()
    since: float = 0.0


class Running(msgspec.Struct, frozen=True):
    """Workers were asked for and have not all ended."""

    progress: Progress
    num_ready: int = 0
    pending: tuple[Pending, ...] = ()
    recent: tuple[tuple[int, msgspec.Raw], ...] = ()
    """The last metrics of rank 0 by number, for checkpoints that other ranks announce."""
    num_returned: int = 0
    num_stopped: int = 0
    fewest: tuple[int, int, str] | None = None
    """Of the ranks that returned, the one with the fewest reports: rank, how many, where the last was made."""
    held: tuple[tuple[int, int], ...] | None = None
    """Once a stop was requested: (rank, its own count) of those at work, as far as they have answered."""
    stop_at: int | None = None
    """The report after which all ranks stop, once it is agreed."""
    failures: tuple[Failure, ...] = ()
    """Broken connections that the death behind them is not yet known of."""
    hang: str = ""
    """What was said of a hang that has not passed."""
    stop_by: float | None = None
    """When a stop at the next report, or the news of a death, has taken too long."""


class Stopping(msgspec.Struct, frozen=True):
    """The attempt is over; processes are ending and commits are being finished."""

    running: Running
    ending: Ending
    failures: tuple[Failure, ...] = ()
    stopped: bool = False


class Restoring(msgspec.Struct, frozen=True):
    """The newest checkpoint is being checked before workers start from it."""

    record: CheckpointRecord


class Finished(msgspec.Struct, frozen=True):
    ending: Ending
    failures: tuple[Failure, ...] = ()


class Unopened(msgspec.Struct, frozen=True):
    """No driver has taken the run in hand yet."""


Phase = Unopened | Restoring | Running | Stopping | Finished


class Run(msgspec.Struct, frozen=True):
    size: int = 1
    max_failures: int = 0
    retention: Retention = Retention()
    initial: str | None = None
    phase: Phase = Unopened()
    attempt: int = 0
    num_failures: int = 0
    checkpoints: tuple[CheckpointRecord, ...] = ()
    """Committed and kept, oldest first."""
    committing: tuple[int, ...] = ()
    num_reports: int = 0
    """The number of the last report of rank 0 that still counts."""
    stop_requested: bool = False

    @property
    def latest(self) -> CheckpointRecord | None:
        return self.checkpoints[-1] if self.checkpoints else None
