"""Storage work that may block: one thread for it, checkpoints, and the stacks and profiles requested as files.

Commits, verifications, deletions and files are done in order of submission. Each piece of work returns an event, which
the controller handles together with the engine's events.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

from paceline._control.commands import CommitCheckpoint
from paceline._control.events import CheckpointBroken, CheckpointVerified, CommitFailed, Committed, Event
from paceline._control.flame_graph import render_flame_page
from paceline._control.journal import Journal
from paceline._control.requests import DiagnosticFile
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import RunHeldError
from paceline._core.system import Clock, make_private_dirs, open_private
from paceline._engine.messages import ProfileRecorded
from paceline._storage.lease import Fence
from paceline._storage.run_store import RunStore

log = logging.getLogger("paceline")

LOG_TRIM_INTERVAL_S = 5.0

Work = Callable[[], Event | None]

KINDS = {"folded.txt": "stacks-folded", "flame.html": "flame", "trace.json.gz": "trace"}
"""Files from a worker that are kept, and their kind; the flame graph is rendered here."""


class StorageThread:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._results: deque[Event | BaseException] = deque()
        self._thread: threading.Thread | None = None
        """Started for the first work: most trials of a search have none."""

    def submit(self, work: Work) -> None:
        """Do this on the thread. Call this from one thread only."""
        self._queue.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_work, name="paceline-storage", daemon=True)
            self._thread.start()

    def take_events(self) -> list[Event]:
        """Return the events since the last call; raise the error of work that failed."""
        events = []
        while self._results:
            result = self._results.popleft()
            if isinstance(result, BaseException):
                raise result
            events.append(result)
        return events

    def close(self) -> None:
        """Finish the submitted work, then end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run_work(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                event: Event | BaseException | None = work()
            except BaseException as error:  # noqa: BLE001
                event = error
            if event is not None:
                self._results.append(event)
                self._wake()


class CheckpointWork:
    """What the storage thread does for a controller: verify, commit and delete checkpoints, sync the journal."""

    def __init__(self, store: RunStore, journal: Journal, fence: Fence, clock: Clock) -> None:
        self._store = store
        self._journal = journal
        self._fence = fence
        self._clock = clock
        self.is_held: Callable[[CheckpointRecord], bool] = lambda record: False
        """Whether somebody still reads a checkpoint, so that its deletion has to wait."""
        self._deferred_deletions: list[CheckpointRecord] = []
        self._trimmed_at = clock.now()
        self._has_synced_names = False

    def sync_run(self) -> None:
        """Make the journal survive a power cut: its lines, and the first time also the names that lead to it."""
        self._journal.sync_written()
        if not self._has_synced_names:
            self._store.sync()
            self._has_synced_names = True

    def sync_journal(self) -> None:
        self.delete_deferred()
        self.sync_run()
        if self._clock.now() - self._trimmed_at >= LOG_TRIM_INTERVAL_S:
            self._trimmed_at = self._clock.now()
            self._trim_logs()
        self._store.upload_journal()

    def _trim_logs(self) -> None:
        try:
            self._store.trim_logs()
        except OSError as error:
            log.warning("cannot limit the size of the logs: %s", error)

    def verify(self, attempt: int, record: CheckpointRecord) -> Event:
        self._store.retry_anew()  # The store may be what the last attempt failed for.
        problem = self._store.find_problem(record)
        if problem is None:
            return CheckpointVerified(attempt, record.seq)
        quarantine_path = self._store.quarantine(record, self._fence)
        if quarantine_path is not None:
            problem = f"{problem}; moved to {quarantine_path}"
        return CheckpointBroken(attempt, record.seq, problem)

    def commit(self, command: CommitCheckpoint, world_size: int) -> Event:
        record = command.record
        if not self._has_synced_names:
            self.sync_run()  # Nothing is committed to a run that a power cut could take away.
        # The name may be reused: then the directory holds the newer checkpoint.
        self._deferred_deletions = [each for each in self._deferred_deletions if each.name != record.name]
        try:
            now = self._clock.wall()
            differing = self._store.commit(
                record, command.parts, world_size=world_size, created_at=now, fence=self._fence
            )
            # Check again before announcing it: a driver that takes over later finds the checkpoint.
            self._fence.check()
        except RunHeldError:
            raise
        except OSError as error:
            self._store.discard_staged(record, self._fence)
            return CommitFailed(record.attempt, record.seq, f"{type(error).__name__}: {error}")
        if differing:
            text = "%s: ranks wrote different contents to %s; keeping those of the lowest rank"
            log.warning(text, record.name, ", ".join(differing))
        return Committed(record)

    def write_stacks(self, path: Path, text: str) -> None:
        try:
            _append_private(path, text)
        except OSError as error:
            log.warning("cannot write the stacks to %s: %s", path, error)

    def delete(self, record: CheckpointRecord) -> None:
        self._deferred_deletions.append(record)
        self.delete_deferred()

    def delete_deferred(self) -> None:
        """Delete the checkpoints that nobody reads any more."""
        records, self._deferred_deletions = self._deferred_deletions, []
        for record in records:
            if self.is_held(record):
                self._deferred_deletions.append(record)
                continue
            try:
                self._store.delete(record, self._fence)
            except RunHeldError:
                raise
            except OSError as error:
                log.warning("cannot delete %s: %s", record.name, error)


def write_stacks_file(store: RunStore, path: Path, text: str, at: float) -> DiagnosticFile | str:
    """Append to the stacks file of an attempt. If that fails, return the reason."""
    header = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC: requested by a user\n\n"
    try:
        _append_private(path, f"{header}{text}\n")
        store.upload_file(path)
    except OSError as error:
        return f"cannot write the stacks to {path}: {error}"
    return _describe_file(store, "stacks", path, -1, at, 0.0)


def _append_private(path: Path, text: str) -> None:
    make_private_dirs(path.parent)
    with open(path, "a", opener=open_private) as file:
        file.write(text)


def write_profile_files(
    store: RunStore, profile: ProfileRecorded, *, at: float, number: int, seconds: float
) -> list[DiagnosticFile]:
    """Write the files from one rank to the run's directory and upload them."""
    directory = store.layout.profiles
    make_private_dirs(directory)
    stem = f"{datetime.fromtimestamp(at, UTC):%Y%m%d-%H%M%S}-{number}-rank_{profile.rank}"
    contents = {name: data for name, data in profile.files if name in KINDS}
    if (folded := contents.get("folded.txt")) is not None:
        title = f"{store.layout.root.name}, rank {profile.rank}"
        contents["flame.html"] = render_flame_page(folded.decode(errors="replace"), title).encode()
    files = []
    for name, data in contents.items():
        path = directory / f"{stem}.{name}"
        part = path.with_name(f".{path.name}.part")
        with open(part, "wb", opener=open_private) as file:
            file.write(data)
        part.rename(path)
        store.upload_file(path)
        files.append(_describe_file(store, KINDS[name], path, profile.rank, at, seconds))
    return files


def _describe_file(store: RunStore, kind: str, path: Path, rank: int, at: float, seconds: float) -> DiagnosticFile:
    below = path.relative_to(store.layout.root).as_posix()
    return DiagnosticFile(kind=kind, path=below, rank=rank, at=at, seconds=seconds, num_bytes=path.stat().st_size)
