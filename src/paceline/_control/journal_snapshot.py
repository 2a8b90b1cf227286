"""A snapshot of a run beside its journal, so that a long journal need not be replayed from its start.

Derived from the journal, and never trusted over it: it says which bytes it covers, and one that is missing, torn, of
another version or for other bytes is ignored. It is taken only when a run is quiet, or has ended: then its state is
small and contains no times of the driver's clock.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from paceline import __version__
from paceline._control import events
from paceline._control.events import Event, Reported, decode_event
from paceline._control.journal import encode_run_event
from paceline._control.run import Finished, RankProgress, Run, Running
from paceline._core.checkpoint_records import StagedFiles
from paceline._core.codec import seal_line, unseal_line
from paceline._core.system import open_private
from paceline._storage.run_layout import RunLayout

log = logging.getLogger("paceline")

VERSION = f"1 {__version__}"
MIN_GROWTH_BYTES = 4 << 20
"""How much the journal grows from one snapshot to the next, at least; `paceline ls` reads as much."""
_GROWTH_FACTOR = 8
"""And how many times the size of the last snapshot."""
_NUM_CHECKED_BYTES = 4096
"""How many of the first and of the last bytes it covers are compared with the journal."""

_NOTHING = msgspec.Raw(b"null")

_RunFields: Any = msgspec.defstruct(
    "RunFields",
    [(field.name, field.type) for field in msgspec.structs.fields(Run) if field.name != "phase"],
    frozen=True,
)


class _QuietPhase(msgspec.Struct, frozen=True):
    """`Running` without anything that waits."""

    progress: tuple[int, ...]
    """By rank."""
    num_ready: int
    recent: tuple[tuple[int, msgspec.Raw], ...]
    hang: str
    may_grow: bool


class JournalSnapshot(msgspec.Struct, frozen=True):
    run_fields: _RunFields
    phase: _QuietPhase | None
    """None if the run has ended."""
    finished: Finished | None
    history: tuple[msgspec.Raw, ...]
    """The events of `EventHistory`."""
    last_report: msgspec.Raw = _NOTHING
    """The last report of rank 0."""
    num_lines: int = 0
    version: str = VERSION
    length: int = 0
    """How many bytes of the journal it covers."""
    head: int = 0
    tail: int = 0
    """Checksums of the first and last of these bytes."""
    summary: msgspec.Raw = _NOTHING
    """What `paceline ls` shows of the run, if it has ended."""
    outline: msgspec.Raw = _NOTHING
    """Before that, what it needs of the lines that the snapshot covers."""

    def restore_run(self) -> Run:
        fields = {name: getattr(self.run_fields, name) for name in self.run_fields.__struct_fields__}
        if self.phase is None:
            assert self.finished is not None
            return Run(**fields, phase=self.finished)
        quiet = self.phase
        progress = RankProgress.start_at(len(quiet.progress), min(quiet.progress))
        for rank, seq in enumerate(quiet.progress):
            progress = progress.advance(rank, seq)
        phase = Running(
            progress, num_ready=quiet.num_ready, recent=quiet.recent, hang=quiet.hang, may_grow=quiet.may_grow
        )
        return Run(**fields, phase=phase)

    def restore_history(self) -> EventHistory:
        last = decode_event(self.last_report) if self.last_report != _NOTHING else None
        return EventHistory(map(decode_event, self.history), last)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JournalSnapshot).decode


class EventHistory:
    """The events to remember. Of reports, which may be millions, only the last one of rank 0."""

    def __init__(self, past: Iterable[Event] = (), last_rank_0_report: Reported | None = None) -> None:
        self.events: list[Event] = list(past)
        self.last_rank_0_report = last_rank_0_report

    def add(self, event: Event) -> None:
        if type(event) is Reported:
            if event.rank == 0:
                self.last_rank_0_report = event
            return
        match event:
            case events.Timestamp() | events.UsageMeasured() | events.DiagnosticFileWritten():
                return
            case events.WorkerReady(rank=rank) | events.CheckpointStaged(staged=StagedFiles(rank=rank)) if rank != 0:
                return  # One worker of ten thousand is enough to show what happened.
        self.events.append(event)


def take_snapshot(run: Run, history: EventHistory) -> JournalSnapshot | None:
    """Take a snapshot of a run; None if it is not quiet."""
    phase = run.phase
    quiet = finished = None
    if run.committing or run.validating is not None:
        return None
    if isinstance(phase, Finished):
        finished = phase
    elif isinstance(phase, Running):
        progress = tuple(phase.progress[rank] for rank in range(run.size))
        quiet = _QuietPhase(progress, phase.num_ready, phase.recent, phase.hang, phase.may_grow)
    else:
        return None
    # A replay has no clock: it does not know how long anything took.
    run = replace(run, last_save_s=None if run.last_save_s is None else 0.0)
    fields = _RunFields(*(getattr(run, name) for name in _RunFields.__struct_fields__))
    last = history.last_rank_0_report
    snapshot = JournalSnapshot(
        fields,
        quiet,
        finished,
        tuple(msgspec.Raw(encode_run_event(event)) for event in history.events),
        msgspec.Raw(encode_run_event(last)) if last is not None else _NOTHING,
    )
    if quiet is not None and replace(phase, started_at=0.0) != snapshot.restore_run().phase:
        return None  # A rank waits, returned or failed.
    return snapshot


MakeOutline = Callable[[RunLayout, int], bytes]
"""Makes the outline of the first bytes of a journal: see `_view/journal/outline.py`."""


class SnapshotFile:
    """Writes the snapshots of one driver."""

    def __init__(self, layout: RunLayout, length: int, make_outline: MakeOutline | None = None) -> None:
        """`length`: that of the journal when it was opened."""
        self._layout = layout
        self._make_outline = make_outline
        self._num_bytes = 0
        self._next_length = length + MIN_GROWTH_BYTES

    def is_due(self, length: int) -> bool:
        return length >= self._next_length

    def mark_written(self, length: int) -> None:
        self._next_length = length + max(MIN_GROWTH_BYTES, _GROWTH_FACTOR * self._num_bytes)

    def write(self, snapshot: JournalSnapshot, journal: int, length: int, num_lines: int) -> None:
        """Write a snapshot of the first `length` bytes of the journal. Without one, a run only takes longer to open.

        `journal`: its descriptor. By path, a driver that was paused would find the journal of the one that took over.
        """
        try:
            self._write(snapshot, journal, length, num_lines)
        except OSError as error:
            log.warning("cannot write %s: %s", self._layout.snapshot, error)

    def _write(self, snapshot: JournalSnapshot, journal: int, length: int, num_lines: int) -> None:
        head, tail = _read_checks(journal, length)
        if self._make_outline is not None and snapshot.finished is None:
            try:
                snapshot = replace(snapshot, outline=msgspec.Raw(self._make_outline(self._layout, length)))
            except Exception:
                log.exception("cannot outline %s; a list of runs has to read all of it", self._layout.journal)
        snapshot = replace(snapshot, length=length, head=head, tail=tail, num_lines=num_lines)
        data = seal_line(_encode(snapshot))
        self._num_bytes = len(data)
        part = self._layout.snapshot.with_name(f"{self._layout.snapshot.name}.part")
        # Not synced: one that a power cut tears is ignored.
        with open(part, "wb", opener=open_private) as file:
            file.write(data)
        part.rename(self._layout.snapshot)


def read_snapshot(layout: RunLayout) -> JournalSnapshot | None:
    """Read the snapshot, if there is one that fits the journal: it covers all of it, or its beginning."""
    try:
        payload = unseal_line(layout.snapshot.read_bytes())
        if payload is None or _decode_version(payload).version != VERSION:
            return None
        snapshot = _decode(payload)
        with layout.journal.open("rb") as journal:
            if (snapshot.head, snapshot.tail) != _read_checks(journal.fileno(), snapshot.length):
                return None
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
    return snapshot


class _Version(msgspec.Struct):
    version: str = ""


_decode_version = msgspec.json.Decoder(_Version).decode


def _read_checks(journal: int, length: int) -> tuple[int, int]:
    """Return checksums of the beginning and the end of a journal's first bytes."""
    size = min(length, _NUM_CHECKED_BYTES)
    head, tail = os.pread(journal, size, 0), os.pread(journal, size, length - size)
    return zlib.crc32(head), zlib.crc32(tail)
