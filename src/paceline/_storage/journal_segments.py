"""The journal of a run in a store: consecutive segments, each an object that never changes.

A segment is named by the offset of its first byte, so two drivers that append want the same name and only one gets it.
Segments hold whole lines only: a line cut in two could not be continued after a crash.
"""

from __future__ import annotations

import threading
from pathlib import Path

from paceline._core.errors import RunHeldError, StorageError
from paceline._storage.files import read_file_if_exists, write_private_file
from paceline._storage.store import Store

JOURNAL_PREFIX = "journal"


def read_stored_journal(store: Store) -> bytes:
    """Return the whole journal, in order. Raises if a segment between others is missing."""
    journal = b""
    for entry in store.list_entries(JOURNAL_PREFIX):
        offset = entry.key.rpartition("/")[2]
        if not offset.isdigit() or int(offset) != len(journal):
            raise StorageError(
                f"{store.uri}: the journal ends at byte {len(journal)}, but the next segment is {entry.key}"
            )
        journal += store.read(entry.key)
    return journal


def reconcile_journal(path: Path, stored: bytes) -> None:
    """Replace the local journal by the stored one, unless the local one starts with it."""
    local = read_file_if_exists(path) or b""
    if local.startswith(stored):
        return
    if local:
        path.rename(path.with_name(f"{path.name}.other"))
    part = path.with_name(f"{path.name}.part")
    write_private_file(part, stored)
    part.rename(path)


class JournalUploader:
    """Uploads the part of a journal that is not in the store yet. Thread-safe."""

    def __init__(self, store: Store, path: Path, num_stored: int = 0) -> None:
        self._store = store
        self._path = path
        self._num_stored = num_stored
        # Protects `_num_stored`: one thread at a time uploads a segment.
        self._lock = threading.Lock()

    def upload_new(self) -> None:
        """Upload the new lines. Raises `RunHeldError` if another driver has stored different ones there."""
        with self._lock:
            with self._path.open("rb") as file:
                file.seek(self._num_stored)
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            if not data:
                return
            key = f"{JOURNAL_PREFIX}/{self._num_stored:016d}"
            if not self._store.create(key, data):
                raise RunHeldError(
                    f"{self._store.uri}/{key} was written by another driver, which has taken over the run\n\n"
                    "hint: let the other driver finish, or end it and run this script again"
                )
            self._num_stored += len(data)
