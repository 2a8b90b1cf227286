"""Stores the checkpoints and the journal of a run, in the run's directory on a disk or in a store.

Code that commits, verifies, deletes or finds checkpoints uses a `RunStore` and does not know which kind it is. A run in
a store also has a directory on this machine, its spool, where files are staged before they are uploaded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline._core import settings
from paceline._core.checkpoint_records import CheckpointRecord, FileEntry, StagedFiles
from paceline._core.errors import RunHeldError, StorageError
from paceline._storage import commit
from paceline._storage.commit import Manifest
from paceline._storage.files import Files, LocalFiles
from paceline._storage.journal_archive import archive_journal, iter_journal_blocks
from paceline._storage.journal_segments import JournalUploader, read_stored_journal
from paceline._storage.lease import UNFENCED, Fence
from paceline._storage.log_files import open_whole_log, trim_log
from paceline._storage.replacement import remove_prepared
from paceline._storage.retrying_store import RetryingStore
from paceline._storage.run_layout import LOGGER_FILES, MANIFEST, METADATA, RunLayout, checkpoint_name
from paceline._storage.save_meter import measure_save
from paceline._storage.store import Store, read_if_exists, run_in_parallel, upload_all

log = logging.getLogger("paceline")

_QUARANTINE_PREFIX = ".broken"

LOG_UPLOAD_INTERVAL_S = 30.0
_SMALL_LOG_BYTES = 4 << 20
"""Logs up to this size are uploaded every `LOG_UPLOAD_INTERVAL_S`, larger ones less often."""


class RunStore(ABC):
    layout: RunLayout
    uri: str
    _files: Files

    @abstractmethod
    def locate_checkpoint(self, record: CheckpointRecord) -> tuple[str, Any]:
        """Return the path of a checkpoint and its `pyarrow.fs` filesystem, which is None on this machine."""

    @abstractmethod
    def checkpoint_uri(self, record: CheckpointRecord) -> str:
        """Return the location of a checkpoint for other programs: `file:///...` or the store's own URI."""

    @abstractmethod
    def locate_run(self) -> tuple[str, Any]:
        """Like `locate_checkpoint`, for the run."""

    @abstractmethod
    def read_journal(self) -> bytes: ...
    def upload_file(self, path: Path) -> None:  # noqa: B027
        """Upload a file of the run's directory, if the run is in a store."""

    def upload_journal(self) -> None:  # noqa: B027
        """Upload new lines of the journal, if the run is in a store."""

    def archive_journal(self, fence: Fence = UNFENCED) -> None:  # noqa: B027
        """Compress the journal of a run on a disk that has ended; in a store it is compressed already."""

    def upload_staged(self, record: CheckpointRecord, rank: int, directory: Path, files: Sequence[FileEntry]) -> None:  # noqa: B027
        """Upload a rank's staged files to where they can be committed, if the run is in a store."""

    @abstractmethod
    def commit(
        self,
        record: CheckpointRecord,
        parts: Sequence[StagedFiles],
        *,
        world_size: int,
        created_at: float,
        fence: Fence = UNFENCED,
    ) -> list[str]: ...
    def sync_checkpoint(self, record: CheckpointRecord) -> None:  # noqa: B027
        """Make a checkpoint durable that another driver may have left in the page cache."""

    @abstractmethod
    def discard_staged(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> None:
        """Delete the staged files of a checkpoint that could not be committed."""

    @abstractmethod
    def remove_replaced(
        self, record: CheckpointRecord, fence: Fence = UNFENCED, pause: Callable[[], None] = lambda: None
    ) -> None:
        """Remove what the commit of a checkpoint made superfluous; calls `pause` before each file of a disk."""

    @abstractmethod
    def set_aside(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> bool:
        """Take a checkpoint out of the run, for `remove_deleted`; return whether it may have been there."""

    @abstractmethod
    def remove_deleted(
        self, record: CheckpointRecord, fence: Fence = UNFENCED, pause: Callable[[], None] = lambda: None
    ) -> None:
        """Free the space of a checkpoint that was set aside; calls `pause` before each file of a disk."""

    def delete(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> None:
        if self.set_aside(record, fence):
            self.remove_deleted(record, fence)

    def has_room(self, num_bytes: int) -> bool:
        """Whether that much fits in beside what is there."""
        return True

    @abstractmethod
    def quarantine(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> str | None:
        """Move an untrusted checkpoint to where no reader looks, and return the new place; None if there is nothing."""

    @abstractmethod
    def find_problem(self, record: CheckpointRecord) -> str | None: ...
    @abstractmethod
    def has_checkpoint(self, record: CheckpointRecord) -> bool: ...
    @abstractmethod
    def list_manifests(self) -> list[Manifest]: ...
    @abstractmethod
    def find_damaged(self) -> list[str]:
        """Return the names of checkpoints without a valid manifest: no reader sees them."""

    def is_blank(self) -> bool:
        """Whether nothing was ever stored here but leases, as far as that is known at no cost."""
        return False

    def recover(self, fence: Fence = UNFENCED) -> None:
        """Undo what earlier drivers left half done, before anything is read."""
        remove_prepared(self._files, self.layout.root, self.layout.journal.name.partition(".")[0], fence)

    def retry_anew(self) -> None:  # noqa: B027
        """Give a store that was gone all its tries again, as for a new attempt."""

    @abstractmethod
    def clear_staging(self, fence: Fence = UNFENCED) -> None: ...
    def sync(self) -> None:
        """Make the run's directory and the names in it survive a power cut."""
        for path in (self.layout.root, self.layout.root.parent):
            self._files.sync_dir(path)

    def trim_logs(self) -> None:
        """Free the middle of logs that have become too large."""
        limit_bytes = settings.log_limit_bytes()
        for path in self._list_logs():
            trim_log(path, limit_bytes)

    def _list_logs(self) -> list[Path]:
        found = os.walk(self.layout.logs)
        return sorted(Path(parent, name) for parent, _, names in found for name in names if name.endswith(".log"))

    def close(self, *, is_done: bool = False) -> None:
        """Store what is left when a driver ends. `is_done`: it ends without an error, so no local copy is needed."""
        self.trim_logs()


class DiskRunStore(RunStore):
    """Stores a run in its own directory."""

    def __init__(self, files: Files, layout: RunLayout) -> None:
        self.layout = layout
        self.uri = str(layout.root)
        self._files = files

    def locate_checkpoint(self, record: CheckpointRecord) -> tuple[str, Any]:
        return str(self.layout.checkpoint(record.name)), None

    def checkpoint_uri(self, record: CheckpointRecord) -> str:
        return self.layout.checkpoint(record.name).absolute().as_uri()

    def locate_run(self) -> tuple[str, Any]:
        return str(self.layout.root), None

    def read_journal(self) -> bytes:
        return b"".join(iter_journal_blocks(self.layout.journal))

    def archive_journal(self, fence: Fence = UNFENCED) -> None:
        archive_journal(self._files, self.layout.journal, fence)
        # The reports are in the archive; these files are for a driver that has not read them all.
        reports = self.layout.root / "reports"
        attempts = list(reports.glob("*"))
        # After the listing: what the workers of a later driver write is never in it.
        fence.check()
        for attempt in attempts:
            self._files.remove_tree(attempt)
        with contextlib.suppress(OSError):  # There are none, or those of a later driver.
            reports.rmdir()

    def commit(self, *args: Any, **kwargs: Any) -> list[str]:
        return commit.commit_checkpoint(self._files, self.layout, *args, **kwargs)

    def sync_checkpoint(self, record: CheckpointRecord) -> None:
        commit.sync_checkpoint(self._files, self.layout, self.layout.checkpoint(record.name))

    def discard_staged(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> None:
        commit.discard_staged(self._files, self.layout, record, fence)

    def remove_replaced(
        self, record: CheckpointRecord, fence: Fence = UNFENCED, pause: Callable[[], None] = lambda: None
    ) -> None:
        commit.remove_replaced(self._files, self.layout, record, fence, pause)

    def set_aside(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> bool:
        return commit.set_aside(self._files, self.layout, record, fence)

    def remove_deleted(
        self, record: CheckpointRecord, fence: Fence = UNFENCED, pause: Callable[[], None] = lambda: None
    ) -> None:
        commit.remove_deleted(self._files, self.layout, record, fence, pause)

    def has_room(self, num_bytes: int) -> bool:
        disk = os.statvfs(self.layout.root)
        return disk.f_bavail * disk.f_frsize >= num_bytes

    def quarantine(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> str | None:
        if not self.layout.checkpoint(record.name).exists():
            return None
        return str(commit.quarantine_checkpoint(self._files, self.layout, record.name, fence))

    def find_problem(self, record: CheckpointRecord) -> str | None:
        return commit.find_problem(self.layout.checkpoint(record.name))

    def has_checkpoint(self, record: CheckpointRecord) -> bool:
        return commit.has_manifest(self.layout.checkpoint(record.name))

    def list_manifests(self) -> list[Manifest]:
        return list(commit.iter_manifests(self.layout))

    def find_damaged(self) -> list[str]:
        return commit.find_damaged(self.layout)

    def is_blank(self) -> bool:
        return os.listdir(self.layout.root) == [self.layout.lease.name]

    def recover(self, fence: Fence = UNFENCED) -> None:
        super().recover(fence)
        commit.recover_commits(self._files, self.layout, fence)

    def clear_staging(self, fence: Fence = UNFENCED) -> None:
        commit.clear_staging(self._files, self.layout, fence)


class RemoteRunStore(RunStore):
    """Stores a run as objects. Each attempt writes below its own prefix, so a dead or paused one touches no other.

    attempt_2/checkpoint_000012/model.pt            of rank 0
    attempt_2/checkpoint_000012/.rank_1/extra.pt    of rank 1
    attempt_2/checkpoint_000012/.manifest.json      put last: from then on it is a checkpoint
    attempt_2/000012/best/...                       a name that the user chose, and may choose again
    """

    def __init__(
        self,
        store: Store,
        layout: RunLayout,
        *,
        journal_uploader: JournalUploader | None = None,
        files: Files | None = None,
        reopen: Callable[[], RunStore] | None = None,
    ) -> None:
        self.layout = layout
        self._reopen = reopen
        self.uri = store.uri
        self._store = store
        self._journal_uploader = journal_uploader
        self._files = files or LocalFiles()
        self._is_failing = False
        self._uploaded_logs: dict[Path, tuple[int, float]] = {}
        """Per log: how many bytes are in the store, and when it may be uploaded again."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Reopen the store in another process, so that results, and errors that carry one, can be pickled."""
        assert self._reopen is not None
        return self._reopen, ()

    def locate_checkpoint(self, record: CheckpointRecord) -> tuple[str, Any]:
        return f"{self._store.path}/{checkpoint_prefix(record)}", self._store.filesystem

    def checkpoint_uri(self, record: CheckpointRecord) -> str:
        return f"{self.uri.rstrip('/')}/{checkpoint_prefix(record)}"

    def locate_run(self) -> tuple[str, Any]:
        return self._store.path, self._store.filesystem

    def read_journal(self) -> bytes:
        return read_stored_journal(self._store)

    def upload_file(self, path: Path) -> None:
        self._store.upload(path, path.relative_to(self.layout.root).as_posix())

    def upload_journal(self) -> None:
        """Upload new lines. A failure is left for the next call; only a commit and the end of the run require success.

        Also uploads logs now and then, for those who view the run from elsewhere.
        """
        if self._journal_uploader is None:
            return
        try:
            self._journal_uploader.upload_new()
            self._upload_grown_logs(time.monotonic())
            self._is_failing = False
        except RunHeldError:
            raise
        except OSError as error:
            if not self._is_failing:
                log.warning("cannot upload the journal or a log to %s, will retry: %s", self.uri, error)
            self._is_failing = True

    def upload_staged(self, record: CheckpointRecord, rank: int, directory: Path, files: Sequence[FileEntry]) -> None:
        prefix = checkpoint_prefix(record) + (f"/.rank_{rank}" if rank else "")
        with measure_save("upload"):
            uploaded = upload_all(self._store, [(directory / entry.path, f"{prefix}/{entry.path}") for entry in files])
        for entry, stored in zip(files, uploaded, strict=True):
            if (entry.size, entry.hash) != (stored.size, stored.hash):
                raise StorageError(f"{directory / entry.path} changed while it was uploaded")
        self._files.remove_tree(directory)

    def commit(
        self,
        record: CheckpointRecord,
        parts: Sequence[StagedFiles],
        *,
        world_size: int,
        created_at: float,
        fence: Fence = UNFENCED,
    ) -> list[str]:
        if any(part.in_place for part in parts):
            raise StorageError(f"{record.name}: NO_UPLOAD needs a run on a disk, not in a store")
        chosen, differing = commit.merge_parts(parts)
        manifest = Manifest(
            record,
            world_size,
            tuple(entry for _, entry in chosen if entry.path != METADATA),
            created_at,
            lease=fence.number,
            keys={entry.path: f".rank_{rank}/{entry.path}" for rank, entry in chosen if rank > 0},
        )
        if self._journal_uploader is not None:
            # First, so that the events before a checkpoint are stored wherever the checkpoint is.
            self._journal_uploader.upload_new()
        self._check_complete(record, manifest)
        fence.check()
        key = _manifest_key(record)
        if not self._store.create(key, commit.encode_manifest(manifest)):
            stored = commit.decode_manifest(self._store.read(key), f"{self.uri}/{key}")
            if stored.record != record:
                raise RunHeldError(f"{self.uri}/{key} was written by another driver, which has taken over the run")
        return differing

    def discard_staged(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> None:
        try:
            # Checks the lease: a driver that took over may have committed these very files.
            self.delete(record, fence)
        except RunHeldError:
            raise
        except OSError as error:
            log.warning("cannot remove uploaded files of %s: %s", record.name, error)

    def remove_replaced(
        self, record: CheckpointRecord, fence: Fence = UNFENCED, pause: Callable[[], None] = lambda: None
    ) -> None:
        if record.name != checkpoint_name(record.seq):
            self._delete_namesakes(record, fence)

    def set_aside(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> bool:
        fence.check()
        self._store.delete(_manifest_key(record))
        return True

    def remove_deleted(
        self, record: CheckpointRecord, fence: Fence = UNFENCED, pause: Callable[[], None] = lambda: None
    ) -> None:
        self._store.delete_all(checkpoint_prefix(record))

    def quarantine(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> str | None:
        """Delete only the manifest: without it the rest is no checkpoint, and stays for a person to inspect."""
        fence.check()
        key = _manifest_key(record)
        data = read_if_exists(self._store, key)
        if data is None:
            return None
        quarantined = f"{_QUARANTINE_PREFIX}/{checkpoint_prefix(record)}{MANIFEST}"
        self._store.write(quarantined, data)
        self._store.delete(key)
        return f"{self.uri}/{quarantined}"

    def find_problem(self, record: CheckpointRecord) -> str | None:
        """Check that every object exists and has its size. Whoever downloads them checks the hashes."""
        key = _manifest_key(record)
        try:
            self._check_complete(record, commit.decode_manifest(self._store.read(key), f"{self.uri}/{key}"))
        except FileNotFoundError:
            return f"{self.uri}/{key} is missing"
        except (IncompleteCheckpointError, commit.ManifestError) as error:
            return str(error)
        return None

    def has_checkpoint(self, record: CheckpointRecord) -> bool:
        return read_if_exists(self._store, _manifest_key(record)) is not None

    def _list_manifest_keys(self) -> list[str]:
        keys = [entry.key for entry in self._store.list_entries()]
        return [key for key in keys if key.endswith(f"/{MANIFEST}") and key.startswith("attempt_")]

    def find_damaged(self) -> list[str]:
        valid = {_manifest_key(manifest.record) for manifest in self.list_manifests()}
        return [key.removesuffix(f"/{MANIFEST}") for key in self._list_manifest_keys() if key not in valid]

    def list_manifests(self) -> list[Manifest]:
        keys = self._list_manifest_keys()
        manifests = []
        contents = run_in_parallel([partial(read_if_exists, self._store, key) for key in keys])
        for key, data in zip(keys, contents, strict=True):
            try:
                manifest = commit.decode_manifest(data or b"", f"{self.uri}/{key}")
            except commit.ManifestError:
                continue  # Damaged, or deleted since it was listed.
            if key == _manifest_key(manifest.record):
                manifests.append(manifest)
        return sorted(manifests, key=lambda manifest: manifest.record.seq)

    def retry_anew(self) -> None:
        if isinstance(self._store, RetryingStore):
            self._store.retry_anew()

    def clear_staging(self, fence: Fence = UNFENCED) -> None:
        """Delete what was uploaded but never committed, and the spool's own staging."""
        entries = self._store.list_entries()
        prefixes = {e.key.removesuffix(f"/{MANIFEST}") for e in entries if e.key.endswith(f"/{MANIFEST}")}
        quarantined = {
            e.key.removeprefix(f"{_QUARANTINE_PREFIX}/").removesuffix(MANIFEST)
            for e in entries
            if e.key.startswith(_QUARANTINE_PREFIX)
        }
        kept = tuple(f"{prefix}/" for prefix in prefixes | quarantined)
        uncommitted = [e.key for e in entries if e.key.startswith("attempt_") and not e.key.startswith(kept)]
        # After the listing: uploads of a later driver are never in it.
        fence.check()
        run_in_parallel([partial(self._store.delete, key) for key in uncommitted])
        commit.clear_staging(self._files, self.layout, fence)

    def close(self, *, is_done: bool = False) -> None:
        super().close()
        if self._journal_uploader is not None:
            try:
                self._journal_uploader.upload_new()
            except RunHeldError:
                raise
            except OSError as error:
                raise StorageError(
                    f"cannot store the end of the journal and the logs, they stay in {self.layout.root}: {error}"
                ) from error
        others = sorted(self.layout.logs.glob("attempt_*/stacks.txt"))
        others += sorted(path for pattern in LOGGER_FILES for path in self.layout.root.glob(pattern))
        try:
            self._upload_logs(self._list_logs())
            upload_all(self._store, [(path, path.relative_to(self.layout.root).as_posix()) for path in others])
        except OSError as error:
            log.warning("cannot upload logs, they stay in %s: %s", self.layout.logs, error)
        else:
            if is_done and self._journal_uploader is not None:
                self._files.remove_tree(self.layout.root)

    def _upload_logs(self, paths: Sequence[Path]) -> None:
        with contextlib.ExitStack() as copies:
            whole = [(copies.enter_context(open_whole_log(path)), path) for path in paths]
            keys = [(source, path.relative_to(self.layout.root).as_posix()) for source, path in whole]
            upload_all(self._store, keys)

    def _upload_grown_logs(self, now: float) -> None:
        """Upload logs that grew. An object is replaced as a whole, so the larger a log, the less often."""
        for path in self._list_logs():
            size = path.stat().st_size
            before, due = self._uploaded_logs.get(path, (0, now + LOG_UPLOAD_INTERVAL_S))
            if size > before and now >= due:
                self._upload_logs([path])
                before, due = size, now + LOG_UPLOAD_INTERVAL_S * max(1.0, size / _SMALL_LOG_BYTES)
            self._uploaded_logs[path] = before, due

    def _delete_namesakes(self, record: CheckpointRecord, fence: Fence) -> None:
        """Delete older checkpoints of the same name: the user reused it, and the newer one is committed."""
        for manifest in self.list_manifests():
            other = manifest.record
            if other.name == record.name and (other.attempt, other.seq) < (record.attempt, record.seq):
                self.delete(other, fence)

    def _check_complete(self, record: CheckpointRecord, manifest: Manifest) -> None:
        prefix = checkpoint_prefix(record)
        sizes = {entry.key: entry.size for entry in self._store.list_entries(prefix)}
        for entry in manifest.files:
            key = f"{prefix}/{manifest.keys.get(entry.path, entry.path)}"
            if key not in sizes:
                raise IncompleteCheckpointError(f"{self.uri}/{key} is missing")
            if sizes[key] != entry.size:
                raise IncompleteCheckpointError(f"{self.uri}/{key} has {sizes[key]} bytes, expected {entry.size}")


class IncompleteCheckpointError(StorageError):
    """Objects that a manifest lists are missing or truncated."""


def read_store_manifest(store: Store) -> Manifest | None:
    """Return the manifest of the checkpoint at the root of a store; None if there is none."""
    data = read_if_exists(store, MANIFEST)
    return None if data is None else commit.decode_manifest(data, f"{store.uri}/{MANIFEST}")


def checkpoint_prefix(record: CheckpointRecord) -> str:
    """Return the prefix of a checkpoint in a store; it is unique to the checkpoint."""
    if record.name == checkpoint_name(record.seq):
        return f"attempt_{record.attempt}/{record.name}"
    return f"attempt_{record.attempt}/{record.seq:06d}/{record.name}"


def _manifest_key(record: CheckpointRecord) -> str:
    return f"{checkpoint_prefix(record)}/{MANIFEST}"
