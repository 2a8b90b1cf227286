"""The journal of a run that is kept in a store: consecutive slices of it, each an object that never changes.

An object is called by the offset of its first byte, so two drivers that write on want the same name, and only one gets
it. Whole lines only: a line that is cut off here could not be continued after a crash.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from paceline._core.errors import RunHeldError, StorageError
from paceline._storage.store import Store

PREFIX = "journal"


def stored_journal(store: Store) -> bytes:
    """All of it, in order; a slice that is missing between others is an error."""
    found = b""
    for entry in store.entries(PREFIX):
        offset = entry.key.rpartition("/")[2]
        if not offset.isdigit() or int(offset) != len(found):
            raise StorageError(f"{store.uri}: the journal ends at byte {len(found)}, and goes on with {entry.key}")
        found += store.read(entry.key)
    return found


def reconciled(path: Path, stored: bytes) -> None:
    """Let the journal on this machine be the run's: its own tail if it continues the stored one, else that one."""
    try:
        local = path.read_bytes()
    except FileNotFoundError:
        local = b""
    if local.startswith(stored):
        return
    if local:
        path.rename(path.with_name(f"{path.name}.other"))
    part = path.with_name(f"{path.name}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(stored)
        file.flush()
        os.fsync(fd)
    part.rename(path)


class Segments:
    """What of a journal is in the store, and how the rest gets there. May be used from several threads."""

    def __init__(self, store: Store, path: Path, num_stored: int = 0) -> None:
        self._store = store
        self._path = path
        self._num_stored = num_stored
        # Over `_num_stored`: a slice is put by one thread at a time.
        self._lock = threading.Lock()

    def put_new(self) -> None:
        """Put what was written since; `RunHeldError` where another driver has put something else there."""
        with self._lock:
            with self._path.open("rb") as file:
                file.seek(self._num_stored)
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            if not data:
                return
            key = f"{PREFIX}/{self._num_stored:016d}"
            if not self._store.create(key, data):
                raise RunHeldError(
                    f"{self._store.uri}/{key} was written by another driver: the run was taken over\n\n"
                    "hint: let the other driver finish, or end it and run this script again"
                )
            self._num_stored += len(data)
