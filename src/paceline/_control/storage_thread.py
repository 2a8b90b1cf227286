"""Storage work that may block: its threads, checkpoints, and the stacks and profiles requested as files.

Commits, verifications and files are done in order of submission, by one thread. Each piece of work returns an event,
which the controller handles together with the engine's events. Deletions have a thread of their own, so no commit waits
for one, and they leave the disk to a checkpoint that is being written.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
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
_ROOM_CHECK_INTERVAL_S = 1.0
"""While a deletion waits: somebody else may fill the disk."""

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

    def add_error(self, error: BaseException) -> None:
        """Raise an error of another thread in `take_events`."""
        self._results.append(error)
        self._wake()

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


class DeletionThread:
    """Deletes in order of submission. Started when something is to be deleted.

    `pause` waits while a checkpoint is being written, since both need the disk. At most one deletion waits: with the
    next one, and at the end, it goes on.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        # Protects what follows.
        self._changed = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._is_saving = False
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], None]) -> None:
        with self._changed:
            if self._is_closing:
                return  # The next driver does it.
            self._queue.append(work)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_work, name="paceline-delete", daemon=True)
                self._thread.start()

    def set_saving(self, is_saving: bool) -> None:
        """Say whether a checkpoint is being written."""
        if is_saving != self._is_saving:
            with self._changed:
                self._is_saving = is_saving
                self._changed.notify_all()

    def pause(self, has_room: Callable[[], bool]) -> None:
        """Wait until no checkpoint is being written, or a reason not to wait."""
        while self._is_saving and has_room():  # Not under the lock: a disk may not answer.
            with self._changed:
                if not self._is_saving or self._queue or self._is_closing:
                    return
                self._changed.wait(_ROOM_CHECK_INTERVAL_S)

    def close(self) -> None:
        """Finish the submitted work without pauses, then end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run_work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if not self._queue:
                    return
                work = self._queue.popleft()
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by the controller
                self._on_error(error)


class CheckpointWork:
    """What is done with checkpoints for a controller: verify, commit and delete them, sync the journal."""

    def __init__(
        self, store: RunStore, journal: Journal, fence: Fence, clock: Clock, deletions: DeletionThread
    ) -> None:
        self._store = store
        self._journal = journal
        self._fence = fence
        self._clock = clock
        self._deletions = deletions
        self.is_held: Callable[[CheckpointRecord], bool] = lambda record: False
        """Whether somebody still reads a checkpoint, so that its deletion has to wait."""
        self._deferred_deletions: list[CheckpointRecord] = []
        self._names_changed = threading.Condition()
        """Protects the names of the checkpoints that are being committed or set aside: one thread at a time."""
        self._names_in_use: set[str] = set()
        self._trimmed_at = clock.now()
        self._has_synced_names = False

    def sync_run(self) -> None:
        """Make the journal survive a power cut: its lines, and the first time also the names that lead to it."""
        self._journal.sync_written()
        if not self._has_synced_names:
            self._store.sync()
            self._has_synced_names = True

    def sync_journal(self) -> None:
        self.sync_run()
        if self._deferred_deletions:
            self._deletions.submit(self.delete_deferred)
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
        began = self._clock.now()
        if not self._has_synced_names:
            self.sync_run()  # Nothing is committed to a run that a power cut could take away.
        try:
            now = self._clock.wall()
            with self._use_name(record.name):
                differing = self._store.commit(
                    record, command.parts, world_size=world_size, created_at=now, fence=self._fence
                )
            # Check again before announcing it: a driver that takes over later finds the checkpoint.
            self._fence.check()
            took_s = round(self._clock.now() - began, 6)
        except RunHeldError:
            raise
        except OSError as error:
            self._store.discard_staged(record, self._fence)
            return CommitFailed(record.attempt, record.seq, f"{type(error).__name__}: {error}")
        if self._has_room(record):
            self._deletions.submit(lambda: self._remove_replaced(record))
        else:
            self._remove_replaced(record)  # Before anybody writes the next one.
        if differing:
            text = "%s: ranks wrote different contents to %s; keeping those of the lowest rank"
            log.warning(text, record.name, ", ".join(differing))
        return Committed(record, took_s)

    def write_stacks(self, path: Path, text: str) -> None:
        try:
            _append_private(path, text)
        except OSError as error:
            log.warning("cannot write the stacks to %s: %s", path, error)

    def delete(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint in the background, once nobody reads it any more."""
        self._deletions.submit(lambda: self._delete(record))

    def delete_deferred(self) -> None:
        """Delete the checkpoints that nobody reads any more. In the deletion thread, or once that has ended."""
        records, self._deferred_deletions = self._deferred_deletions, []
        for record in records:
            self._delete(record)

    def _delete(self, record: CheckpointRecord) -> None:
        if self.is_held(record):
            self._deferred_deletions.append(record)
            return
        try:
            with self._use_name(record.name):
                is_set_aside = self._store.set_aside(record, self._fence)
            if is_set_aside:
                self._store.remove_deleted(record, self._fence, self._make_pause(record))
        except RunHeldError:
            raise
        except OSError as error:
            log.warning("cannot delete %s: %s", record.name, error)

    def _remove_replaced(self, record: CheckpointRecord) -> None:
        try:
            self._store.remove_replaced(record, self._fence, self._make_pause(record))
        except RunHeldError:
            raise
        except OSError as error:
            log.warning("cannot remove what %s replaces: %s", record.name, error)

    def _make_pause(self, record: CheckpointRecord) -> Callable[[], None]:
        return lambda: self._deletions.pause(lambda: self._has_room(record))

    def _has_room(self, record: CheckpointRecord) -> bool:
        """Whether the disk has room for two more such checkpoints, so that a deletion may wait."""
        return self._store.has_room(2 * record.num_bytes)

    @contextlib.contextmanager
    def _use_name(self, name: str) -> Iterator[None]:
        with self._names_changed:
            self._names_changed.wait_for(lambda: name not in self._names_in_use)
            self._names_in_use.add(name)
        try:
            yield
        finally:
            with self._names_changed:
                self._names_in_use.remove(name)
                self._names_changed.notify_all()


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
