"""The journal of a run in a store: segments, objects that never change, each of which names the one before it.

    journal/0000000000000000-00000003-00000000      bytes from 0 on, by the driver with lease 3, the first of all
    journal/0000000000012486-00000003-00000003      the next one, by the same driver
    journal/0000000000019143-00000005-00000003      by a driver that took over there: lease 5 after one of lease 3

The journal ends with the last segment of the highest lease, and leads back from there. What a driver uploads after
another has read the journal is at or behind the offset where that one continues, so no way leads to it, whenever the
put arrives. That needs no conditional put, since drivers never share a key, and a driver puts one segment after the
other: it tries again with the same bytes until a put has succeeded.

Segments hold whole lines only: a line cut in two could not be continued after a crash. They are compressed, but for
small ones; offsets are those of the lines.
"""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from paceline._core.errors import RunHeldError, StorageError
from paceline._storage.files import Files, read_file_if_exists, write_private_file
from paceline._storage.journal_archive import compress_segment, decompress_segment
from paceline._storage.lease import UNFENCED, Fence
from paceline._storage.replacement import prepared_path, remove_prepared, replace_file
from paceline._storage.store import Store

JOURNAL_PREFIX = "journal"

_KEY = re.compile(JOURNAL_PREFIX + r"/(\d+)(?:-(\d+)-(\d+))?")
"""Runs of development versions have keys of an offset only."""


@dataclass(frozen=True, slots=True)
class Segment:
    key: str
    size: int
    offset: int
    """Of its first byte in the journal."""
    lease: int
    """Number of the driver that wrote it."""
    lease_before: int
    """Number of the driver that wrote the segment before it; 0 for the first one."""


def list_segments(store: Store) -> list[Segment]:
    """Return the segments of the journal, in order, without those of drivers that had lost the run."""
    by_lease: dict[int, list[Segment]] = defaultdict(list)
    for entry in store.list_entries(JOURNAL_PREFIX):
        match = _KEY.fullmatch(entry.key)
        if match is None:
            raise StorageError(f"{store.uri}: {entry.key} is not a journal segment")
        offset, lease, lease_before = (int(number or 0) for number in match.groups())
        by_lease[lease].append(Segment(entry.key, entry.size, offset, lease, lease_before))
    found: list[Segment] = []
    lease, end = max(by_lease, default=0), float("inf")
    while end > 0 and by_lease[lease]:
        segment = by_lease[lease].pop()
        if segment.offset < end:
            found.append(segment)
            lease, end = segment.lease_before, segment.offset
    found.reverse()
    return found


def read_segment(store: Store, segment: Segment, end: int) -> bytes:
    """Return the lines of a segment. Raises unless it begins where the one before it ends."""
    if segment.offset != end:
        raise StorageError(f"{store.uri}: the journal ends at byte {end}, but the next segment is {segment.key}")
    return decompress_segment(store.read(segment.key))


def read_segments(store: Store, segments: list[Segment]) -> bytes:
    """Return the lines of consecutive segments. Raises if a segment between others is missing."""
    journal = b""
    for segment in segments:
        journal += read_segment(store, segment, len(journal))
    return journal


def read_stored_journal(store: Store) -> bytes:
    """Return the whole journal, in order. Raises if a segment between others is missing."""
    return read_segments(store, list_segments(store))


def open_stored_journal(store: Store, files: Files, path: Path, fence: Fence) -> JournalUploader:
    """Bring the local journal up to date for the driver that took the lease, and return what uploads its lines."""
    segments = list_segments(store)
    stored = read_segments(store, segments)
    reconcile_journal(files, path, stored, fence)
    return JournalUploader(store, path, len(stored), fence, last_lease=segments[-1].lease if segments else 0)


def reconcile_journal(files: Files, path: Path, stored: bytes, fence: Fence = UNFENCED) -> None:
    """Replace the local journal by the stored one, unless the local one starts with it."""
    remove_prepared(files, path.parent, path.name, fence)
    local = read_file_if_exists(path) or b""
    if local.startswith(stored):
        return
    if local:
        write_private_file(path.with_name(f"{path.name}.other"), local)
    write_private_file(prepared_path(path, fence), stored)
    replace_file(files, path, fence)


class JournalUploader:
    """Uploads the part of a journal that is not in the store yet. Thread-safe.

    `num_stored`, `last_lease`: where the stored journal ended when this driver, which had the lease, read it.
    """

    def __init__(
        self, store: Store, path: Path, num_stored: int = 0, fence: Fence = UNFENCED, *, last_lease: int = 0
    ) -> None:
        self._store = store
        self._fence = fence
        self._path = path
        self._num_stored = num_stored
        self._lease_before = last_lease
        self._lease = fence.number
        if last_lease >= max(1, fence.number):
            # Either a later driver has the run, or numbers began anew after somebody removed the lease.
            fence.check()
            self._lease = last_lease + 1
        self._num_tried = 0
        """Bytes of the next segment if a put of it has failed: it may still arrive, in place of another one."""
        self._identity: tuple[int, int] | None = None
        """Device and inode of the journal of this driver: one that takes over has its own file in its place."""
        # Protects the fields above: one thread at a time uploads a segment.
        self._lock = threading.Lock()

    def upload_new(self) -> None:
        """Upload the new lines. Raises `RunHeldError` if another driver has the run."""
        with self._lock:
            data = self._read_new_lines()
            num_tried = self._num_tried
            for part in (data[:num_tried], data[num_tried:]):
                if part:
                    self._upload_segment(part)

    def _read_new_lines(self) -> bytes:
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity = status.st_dev, status.st_ino
            if self._identity not in (None, identity):
                raise _make_taken_over_error(f"{self._path} was replaced")
            self._identity = identity
            file.seek(self._num_stored)
            data = file.read()
        return data[: data.rfind(b"\n") + 1]

    def _upload_segment(self, lines: bytes) -> None:
        self._fence.check_if_overdue()
        self._num_tried = len(lines)
        key = f"{JOURNAL_PREFIX}/{self._num_stored:016d}-{self._lease:08d}-{self._lease_before:08d}"
        data = compress_segment(lines)
        # An earlier try may have arrived after all.
        if not self._store.create(key, data) and self._store.read(key) != data:
            raise _make_taken_over_error(f"{self._store.uri}/{key} was written")
        self._num_tried = 0
        self._num_stored += len(lines)
        self._lease_before = self._lease


def _make_taken_over_error(fact: str) -> RunHeldError:
    return RunHeldError(
        f"{fact} by another driver, which has taken over the run\n\n"
        "hint: let the other driver finish, or end it and run this script again"
    )
