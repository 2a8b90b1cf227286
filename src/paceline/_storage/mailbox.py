"""The mailbox of a run, a directory or objects of a store: people leave requests for its driver and collect answers.

A request is `<id>.json`, its answer `<id>.answer.json`; each appears atomically. Whoever may write there may send
requests. Reads are limited to a few kilobytes of regular files, since anybody may have put anything there.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from paceline._storage.files import write_private_file
from paceline._storage.store import Store, read_if_exists

MAX_BYTES = 64 << 10
EXPIRY_S = 600.0
"""An answer that nobody has fetched for this long is removed."""
NFS_REFRESH_S = 5.0
"""How often to make a network filesystem ask the server and not its directory cache."""
_PREFIX, _REQUEST, _ANSWER = ".requests", ".json", ".answer.json"
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


class Mailbox(ABC):
    # The driver's side.

    @abstractmethod
    def open(self) -> None: ...
    @abstractmethod
    def close(self) -> None: ...
    @abstractmethod
    def list_waiting(self) -> list[str]:
        """Return the ids of the pending requests."""

    def read(self, id: str) -> bytes | None:
        """Return a request; None if it is gone, too large or not a regular file."""
        return self._read(id + _REQUEST, MAX_BYTES)

    def remove(self, id: str) -> None:
        """Remove a request that the driver has taken."""
        self._delete(id + _REQUEST)

    def write_answer(self, id: str, data: bytes) -> None:
        self._write(id + _ANSWER, data)

    # The requester's side.

    @abstractmethod
    def is_open(self) -> bool: ...
    def put(self, id: str, data: bytes) -> None:
        self._write(id + _REQUEST, data)

    def read_answer(self, id: str) -> bytes | None:
        return self._read(id + _ANSWER, None)

    def withdraw(self, id: str) -> None:
        """Remove the request and the answer of a requester that has stopped waiting."""
        self._delete(id + _REQUEST)
        self._delete(id + _ANSWER)

    @abstractmethod
    def _read(self, name: str, max_bytes: int | None) -> bytes | None: ...
    @abstractmethod
    def _write(self, name: str, data: bytes) -> None: ...
    @abstractmethod
    def _delete(self, name: str) -> None: ...


class DiskMailbox(Mailbox):
    """Files that only their owner can read, in a directory of the run that its driver creates."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._invalidated_at = float("-inf")

    def open(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)

    def close(self) -> None:
        try:
            self._directory.rmdir()
        except OSError:
            pass  # Unfetched answers are left; the next driver removes them.

    def list_waiting(self) -> list[str]:
        try:
            anew = self._invalidate_nfs_cache()
            names = os.listdir(self._directory)
        except FileNotFoundError:
            self.open()  # Somebody has removed the directory.
            return []
        if anew:
            self._remove_expired(names)
        requests = [name.removesuffix(_REQUEST) for name in names if name.endswith(_REQUEST)]
        return sorted(id for id in requests if _ID.fullmatch(id))

    def is_open(self) -> bool:
        return self._directory.is_dir()

    def read_answer(self, id: str) -> bytes | None:
        try:
            self._invalidate_nfs_cache()
        except FileNotFoundError:
            return None
        return super().read_answer(id)

    def _invalidate_nfs_cache(self) -> bool:
        """Now and then, touch the directory: this invalidates what NFS clients have cached of it."""
        now = time.monotonic()
        if now - self._invalidated_at < NFS_REFRESH_S:
            return False
        self._invalidated_at = now
        os.utime(self._directory)
        return True

    def _remove_expired(self, names: list[str]) -> None:
        for name in names:
            if name.endswith(_REQUEST) and not name.endswith(_ANSWER):
                continue
            path = self._directory / name
            try:
                if time.time() - path.lstat().st_mtime > EXPIRY_S:
                    path.unlink(missing_ok=True)
            except OSError:
                pass  # A directory, or somebody else's file: not ours.

    def _read(self, name: str, max_bytes: int | None) -> bytes | None:
        try:
            # Neither block nor follow: it may be a pipe or a link.
            fd = os.open(self._directory / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return None
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or (max_bytes is not None and info.st_size > max_bytes):
            os.close(fd)
            return None
        with open(fd, "rb") as file:
            return file.read()

    def _write(self, name: str, data: bytes) -> None:
        part = self._directory / f"{name}.part"
        write_private_file(part, data, os.O_TRUNC | os.O_NOFOLLOW, sync=False)
        part.rename(self._directory / name)

    def _delete(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)


class RemoteMailbox(Mailbox):
    """Objects in the run's store. Each look costs a call to the store, so looks are rare."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        """`open_store` returns the store; called on first use."""
        self._open_store = open_store

    @functools.cached_property
    def _store(self) -> Store:
        return self._open_store()

    def open(self) -> None:
        """Remove answers of earlier drivers that nobody has fetched."""
        for entry in self._store.list_entries(_PREFIX):
            if entry.key.endswith(_ANSWER):
                self._store.delete(entry.key)

    def close(self) -> None:
        """Do nothing: there are no directories, and answers may still be fetched."""

    def list_waiting(self) -> list[str]:
        ids = []
        for entry in self._store.list_entries(_PREFIX):
            id = entry.key.removeprefix(f"{_PREFIX}/").removesuffix(_REQUEST)
            if entry.key == f"{_PREFIX}/{id}{_REQUEST}" and _ID.fullmatch(id) and entry.size <= MAX_BYTES:
                ids.append(id)
        return ids

    def is_open(self) -> bool:
        return True

    def _read(self, name: str, max_bytes: int | None) -> bytes | None:
        return read_if_exists(self._store, f"{_PREFIX}/{name}")

    def _write(self, name: str, data: bytes) -> None:
        self._store.write(f"{_PREFIX}/{name}", data)

    def _delete(self, name: str) -> None:
        self._store.delete(f"{_PREFIX}/{name}")
