"""Where the checkpoints and the journal of a run are kept: beside the run's directory on a disk, or in a store.

Everybody who commits, checks, deletes or finds a checkpoint asks a depot, and none of them knows which kind it is. A
run in a store has a directory on this machine as well, its spool, where files are staged before they are uploaded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from paceline._core.errors import RunHeldError, StorageError
from paceline._engine.messages import CheckpointRecord, FileEntry, Staged
from paceline._storage import commit
from paceline._storage.commit import Manifest
from paceline._storage.files import Files, LocalFiles
from paceline._storage.layout import LOGGED, MANIFEST, METADATA, Layout, checkpoint_name
from paceline._storage.lease import UNFENCED, Fence
from paceline._storage.segments import Segments, stored_journal
from paceline._storage.store import Store
from paceline._storage.transfer import in_parallel, upload_all

log = logging.getLogger("paceline")

_BROKEN = ".broken"

LOGS_EVERY_S = 30.0
_SMALL_LOG = 4 << 20
"""Bytes of a log up to which it is brought over so often."""


class Depot(Protocol):
    layout: Layout
    """The run's directory on this machine."""

    @property
    def uri(self) -> str:
        """Where the run is, for people."""
        ...

    def place(self, record: CheckpointRecord) -> tuple[str, Any]:
        """The path of a checkpoint and the `pyarrow.fs` filesystem it is on; None for one of this machine."""
        ...

    def address(self, record: CheckpointRecord) -> str:
        """Where a checkpoint is, for other programs: `file:///...` or in the store's own words."""
        ...

    def root(self) -> tuple[str, Any]:
        """The same as `place`, of the run."""
        ...

    def journal(self) -> bytes: ...
    def keep_file(self, path: Path) -> None:
        """Bring a file that lies in the run's directory to where the run is kept."""
        ...

    def ship_journal(self) -> None:
        """Bring what was written to the journal to where the run is kept."""
        ...

    def keep(self, record: CheckpointRecord, rank: int, directory: Path, files: Sequence[FileEntry]) -> None:
        """Bring what a rank has staged in a directory of this machine to where it can be committed."""
        ...

    def commit(
        self,
        record: CheckpointRecord,
        parts: Sequence[Staged],
        *,
        world_size: int,
        created_at: float,
        fence: Fence = UNFENCED,
    ) -> list[str]: ...
    def discard(self, record: CheckpointRecord) -> None:
        """Remove what was staged for a checkpoint that could not be committed."""
        ...

    def delete(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> None: ...
    def set_aside(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> str | None:
        """Move one that cannot be trusted to where no reader looks, and say where; None where there is nothing."""
        ...

    def problem_with(self, record: CheckpointRecord) -> str | None: ...
    def has(self, record: CheckpointRecord) -> bool: ...
    def manifests(self) -> list[Manifest]: ...
    def without_manifest(self) -> set[str]:
        """The names of checkpoints under which files lie and no manifest."""
        ...

    def recover(self, fence: Fence = UNFENCED) -> None:
        """Undo what a crash left half done."""
        ...

    def clear_staging(self, fence: Fence = UNFENCED) -> None: ...
    def sync(self) -> None:
        """Make the names of what lies in the run's directory, and its own, survive the power."""
        ...

    def close(self) -> None:
        """Bring over what is left, when a driver ends."""
        ...


class DiskDepot:
    """The run's own directory."""

    def __init__(self, files: Files, layout: Layout) -> None:
        self.layout = layout
        self.uri = str(layout.root)
        self._files = files

    def place(self, record: CheckpointRecord) -> tuple[str, Any]:
        return str(self.layout.checkpoint(record.name)), None

    def address(self, record: CheckpointRecord) -> str:
        return self.layout.checkpoint(record.name).absolute().as_uri()

    def root(self) -> tuple[str, Any]:
        return str(self.layout.root), None

    def journal(self) -> bytes:
        try:
            return self.layout.journal.read_bytes()
        except FileNotFoundError:
            return b""

    def keep_file(self, path: Path) -> None:
        """It is where it belongs."""

    def ship_journal(self) -> None:
        """It is where it belongs."""

    def keep(self, record: CheckpointRecord, rank: int, directory: Path, files: Sequence[FileEntry]) -> None:
        """It is on the run's own storage, and renamed when it is committed."""

    def commit(
        self,
        record: CheckpointRecord,
        parts: Sequence[Staged],
        *,
        world_size: int,
        created_at: float,
        fence: Fence = UNFENCED,
    ) -> list[str]:
        return commit.commit(
            self._files, self.layout, record, parts, world_size=world_size, created_at=created_at, fence=fence
        )

    def discard(self, record: CheckpointRecord) -> None:
        commit.discard(self._files, self.layout, record)

    def delete(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> None:
        commit.delete(self._files, self.layout, record, fence)

    def set_aside(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> str | None:
        if not self.layout.checkpoint(record.name).exists():
            return None
        return str(commit.set_aside(self._files, self.layout, record.name, fence))

    def problem_with(self, record: CheckpointRecord) -> str | None:
        return commit.problem_with(self.layout.checkpoint(record.name))

    def has(self, record: CheckpointRecord) -> bool:
        return commit.has_manifest(self.layout.checkpoint(record.name))

    def manifests(self) -> list[Manifest]:
        return list(commit.manifests(self.layout))

    def without_manifest(self) -> set[str]:
        return commit.without_manifest(self.layout)

    def recover(self, fence: Fence = UNFENCED) -> None:
        commit.recover(self._files, self.layout, fence)

    def clear_staging(self, fence: Fence = UNFENCED) -> None:
        commit.clear_staging(self._files, self.layout, fence)

    def sync(self) -> None:
        for path in (self.layout.root, self.layout.root.parent):
            self._files.sync_dir(path)

    def close(self) -> None:
        """All is where it belongs."""


class StoreDepot:
    """Objects of a store. An attempt writes below a prefix of its own: one that is dead or paused touches no other.

    attempt_2/checkpoint_000012/model.pt            of rank 0
    attempt_2/checkpoint_000012/.rank_1/extra.pt    of rank 1
    attempt_2/checkpoint_000012/.manifest.json      put last: from then on it is a checkpoint
    attempt_2/000012/best/...                       under a name that the user chose, and may choose again
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        *,
        segments: Segments | None = None,
        files: Files | None = None,
        reopen: Callable[[], Depot] | None = None,
    ) -> None:
        self.layout = layout
        self._reopen = reopen
        self.uri = store.uri
        self._store = store
        self._segments = segments
        self._files = files or LocalFiles()
        self._failing = False
        self._logs_put: dict[Path, tuple[int, float]] = {}
        """How much of each log is in the store, and from when on it may be put again."""

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is opened again: a result, and an error that carries one, can be sent there."""
        assert self._reopen is not None
        return self._reopen, ()

    def place(self, record: CheckpointRecord) -> tuple[str, Any]:
        return f"{self._store.path}/{prefix_of(record)}", self._store.filesystem

    def address(self, record: CheckpointRecord) -> str:
        return f"{self.uri.rstrip('/')}/{prefix_of(record)}"

    def root(self) -> tuple[str, Any]:
        return self._store.path, self._store.filesystem

    def journal(self) -> bytes:
        return stored_journal(self._store)

    def keep_file(self, path: Path) -> None:
        self._store.upload(path, path.relative_to(self.layout.root).as_posix())

    def ship_journal(self) -> None:
        """Whenever it does not work it is left for the next time; a commit and the end insist on it.

        Now and then logs go along, for those who look at the run from elsewhere.
        """
        if self._segments is None:
            return
        try:
            self._segments.put_new()
            self._put_grown_logs(time.monotonic())
            self._failing = False
        except RunHeldError:
            raise
        except OSError as error:
            if not self._failing:
                log.warning("the journal or a log could not be brought to %s, tried again: %s", self.uri, error)
            self._failing = True

    def keep(self, record: CheckpointRecord, rank: int, directory: Path, files: Sequence[FileEntry]) -> None:
        prefix = _rank_prefix(record, rank)
        put = upload_all(self._store, [(directory / entry.path, f"{prefix}/{entry.path}") for entry in files])
        for entry, there in zip(files, put, strict=True):
            if (entry.size, entry.hash) != (there.size, there.hash):
                raise StorageError(f"{directory / entry.path} changed while it was uploaded")
        self._files.remove_tree(directory)

    def commit(
        self,
        record: CheckpointRecord,
        parts: Sequence[Staged],
        *,
        world_size: int,
        created_at: float,
        fence: Fence = UNFENCED,
    ) -> list[str]:
        if any(part.in_place for part in parts):
            raise StorageError(f"{record.name}: NO_UPLOAD is not possible where the run is kept in a store")
        chosen, differing = commit.merged(parts)
        manifest = Manifest(
            record,
            world_size,
            tuple(entry for _, entry in chosen if entry.path != METADATA),
            created_at,
            lease=fence.number,
            keys={entry.path: f".rank_{rank}/{entry.path}" for rank, entry in chosen if rank > 0},
        )
        if self._segments is not None:
            # First: what led to a checkpoint is known wherever the checkpoint is.
            self._segments.put_new()
        self._check_complete(record, manifest)
        fence.check()
        key = f"{prefix_of(record)}/{MANIFEST}"
        if not self._store.create(key, commit.encoded_manifest(manifest)):
            there = commit.decoded_manifest(self._store.read(key), f"{self.uri}/{key}")
            if there.record != record:
                raise RunHeldError(f"{self.uri}/{key} was written by another driver: the run was taken over")
        if record.name != checkpoint_name(record.seq):
            self._delete_namesakes(record, fence)
        return differing

    def discard(self, record: CheckpointRecord) -> None:
        try:
            self.delete(record)
        except OSError as error:
            log.warning("what was uploaded for %s could not be removed: %s", record.name, error)

    def delete(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> None:
        fence.check()
        prefix = prefix_of(record)
        self._store.delete(f"{prefix}/{MANIFEST}")
        self._store.delete_all(prefix)

    def set_aside(self, record: CheckpointRecord, fence: Fence = UNFENCED) -> str | None:
        """Its manifest alone goes: without one the rest is no checkpoint, and stays for a person to look at."""
        fence.check()
        key = f"{prefix_of(record)}/{MANIFEST}"
        try:
            data = self._store.read(key)
        except FileNotFoundError:
            return None
        aside = f"{_BROKEN}/{key.removesuffix(f'/{MANIFEST}')}{MANIFEST}"
        self._store.write(aside, data)
        self._store.delete(key)
        return f"{self.uri}/{aside}"

    def problem_with(self, record: CheckpointRecord) -> str | None:
        """Whether every object is there in its size. Hashes are checked by whoever downloads them."""
        key = f"{prefix_of(record)}/{MANIFEST}"
        try:
            manifest = commit.decoded_manifest(self._store.read(key), f"{self.uri}/{key}")
            self._check_complete(record, manifest)
        except FileNotFoundError:
            return f"{self.uri}/{key} is missing"
        except IncompleteError as error:
            return str(error)
        except commit.ManifestError as error:
            return str(error)
        return None

    def has(self, record: CheckpointRecord) -> bool:
        try:
            self._store.read(f"{prefix_of(record)}/{MANIFEST}")
        except FileNotFoundError:
            return False
        return True

    def manifests(self) -> list[Manifest]:
        keys = [e.key for e in self._store.entries() if e.key.endswith(f"/{MANIFEST}") and e.key.startswith("attempt_")]
        found = []
        for key, data in zip(keys, in_parallel([_reading(self._store, key) for key in keys]), strict=True):
            if data is None:
                continue  # Deleted since it was listed.
            try:
                manifest = commit.decoded_manifest(data, f"{self.uri}/{key}")
            except commit.ManifestError:
                continue
            if key == f"{prefix_of(manifest.record)}/{MANIFEST}":
                found.append(manifest)
        return sorted(found, key=lambda manifest: manifest.record.seq)

    def without_manifest(self) -> set[str]:
        """`clear_staging` sees to them: below the prefix of an attempt nothing else lies."""
        return set()

    def recover(self, fence: Fence = UNFENCED) -> None:
        """Nothing is ever half done: a checkpoint is there with its manifest."""

    def clear_staging(self, fence: Fence = UNFENCED) -> None:
        """Remove what was uploaded and never committed, and the spool's own staging."""
        entries = self._store.entries()
        prefixes = {e.key.removesuffix(f"/{MANIFEST}") for e in entries if e.key.endswith(f"/{MANIFEST}")}
        aside = {e.key.removeprefix(f"{_BROKEN}/").removesuffix(MANIFEST) for e in entries if e.key.startswith(_BROKEN)}
        left = [
            entry.key
            for entry in entries
            if entry.key.startswith("attempt_")
            and not any(entry.key.startswith(f"{prefix}/") for prefix in prefixes | aside)
        ]
        # Listed before this: what a driver after this one uploads is never among it.
        fence.check()
        in_parallel([_deleting(self._store, key) for key in left])
        commit.clear_staging(self._files, self.layout, fence)

    def sync(self) -> None:
        for path in (self.layout.root, self.layout.root.parent):
            self._files.sync_dir(path)

    def close(self) -> None:
        if self._segments is not None:
            self._segments.put_new()
        logs = sorted(self.layout.logs.rglob("*.log")) if self.layout.logs.exists() else []
        logs += sorted(self.layout.logs.glob("attempt_*/stacks.txt"))
        logs += sorted(path for pattern in LOGGED for path in self.layout.root.glob(pattern))
        try:
            upload_all(self._store, [(path, path.relative_to(self.layout.root).as_posix()) for path in logs])
        except OSError as error:
            log.warning("logs stay in %s: %s", self.layout.logs, error)

    def _put_grown_logs(self, now: float) -> None:
        """An object is put as a whole, so the larger a log is, the more seldom."""
        for path in sorted(self.layout.logs.rglob("*.log")) if self.layout.logs.exists() else ():
            size = path.stat().st_size
            before, due = self._logs_put.get(path, (0, now + LOGS_EVERY_S))
            if size > before and now >= due:
                self.keep_file(path)
                before, due = size, now + LOGS_EVERY_S * max(1.0, size / _SMALL_LOG)
            self._logs_put[path] = before, due

    def _delete_namesakes(self, record: CheckpointRecord, fence: Fence) -> None:
        """A name that the user chose again: the older one goes, now that the newer one is there."""
        for manifest in self.manifests():
            other = manifest.record
            if other.name == record.name and (other.attempt, other.seq) < (record.attempt, record.seq):
                self.delete(other, fence)

    def _check_complete(self, record: CheckpointRecord, manifest: Manifest) -> None:
        prefix = prefix_of(record)
        sizes = {entry.key: entry.size for entry in self._store.entries(prefix)}
        for entry in manifest.files:
            key = f"{prefix}/{manifest.keys.get(entry.path, entry.path)}"
            if key not in sizes:
                raise IncompleteError(f"{self.uri}/{key} is missing")
            if sizes[key] != entry.size:
                raise IncompleteError(f"{self.uri}/{key} has {sizes[key]} bytes where {entry.size} were written")


class IncompleteError(StorageError):
    """Objects that a manifest names are missing or cut off."""


def manifest_in(store: Store) -> Manifest | None:
    """The manifest of the checkpoint that a store is opened at; None where there is none."""
    try:
        return commit.decoded_manifest(store.read(MANIFEST), f"{store.uri}/{MANIFEST}")
    except FileNotFoundError:
        return None


def prefix_of(record: CheckpointRecord) -> str:
    """Where a checkpoint lies in a store; no two are ever in one place."""
    if record.name == checkpoint_name(record.seq):
        return f"attempt_{record.attempt}/{record.name}"
    return f"attempt_{record.attempt}/{record.seq:06d}/{record.name}"


def _rank_prefix(record: CheckpointRecord, rank: int) -> str:
    return prefix_of(record) if rank == 0 else f"{prefix_of(record)}/.rank_{rank}"


def _reading(store: Store, key: str) -> Any:
    def read() -> bytes | None:
        try:
            return store.read(key)
        except FileNotFoundError:
            return None

    return read


def _deleting(store: Store, key: str) -> Any:
    return lambda: store.delete(key)
