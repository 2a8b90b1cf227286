"""Where people leave requests for the driver of a run, and find its answers: a directory, or objects of a store.

A request is `<id>.json`, its answer `<id>.answer.json`; each is there whole or not at all. Whoever may write there may
ask. What is read is never more than some kilobytes of a plain file: anybody may have put anything there.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from paceline._storage.store import Store

MAX_BYTES = 64 << 10
FORGOTTEN_S = 600.0
"""An answer that nobody has fetched for so long is removed."""
LOOK_ANEW_S = 5.0
"""How often a network filesystem is made to look at the server, and not at what it remembers of a directory."""
_PREFIX, _REQUEST, _ANSWER = ".requests", ".json", ".answer.json"
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


class Mailbox(Protocol):
    # For the driver.

    def open(self) -> None: ...
    def close(self) -> None: ...
    def waiting(self) -> list[str]:
        """The ids of the requests that are there."""
        ...

    def read(self, id: str) -> bytes | None:
        """A request; None where it is gone, or nothing that is read: too large, or no plain file."""
        ...

    def remove(self, id: str) -> None:
        """The request, once it is taken."""
        ...

    def answer(self, id: str, data: bytes) -> None: ...

    # For those who ask.

    def is_open(self) -> bool: ...
    def put(self, id: str, data: bytes) -> None: ...
    def answer_to(self, id: str) -> bytes | None: ...
    def leave(self, id: str) -> None:
        """Remove the request, and the answer, of somebody who does not wait any more."""
        ...


class DiskMailbox:
    """Files for their owner alone, in a directory of the run that its driver makes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._looked_at = float("-inf")

    def open(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)

    def close(self) -> None:
        try:
            self._directory.rmdir()
        except OSError:
            pass  # Answers lie there that are still to be fetched; the next driver removes what is left of them.

    def waiting(self) -> list[str]:
        try:
            anew = self._look_anew()
            names = os.listdir(self._directory)
        except FileNotFoundError:
            self.open()  # Somebody has tidied up.
            return []
        if anew:
            self._remove_forgotten(names)
        requests = [name.removesuffix(_REQUEST) for name in names if name.endswith(_REQUEST)]
        return sorted(id for id in requests if _ID.fullmatch(id))

    def read(self, id: str) -> bytes | None:
        return self._read(id + _REQUEST, MAX_BYTES)

    def remove(self, id: str) -> None:
        (self._directory / (id + _REQUEST)).unlink(missing_ok=True)

    def answer(self, id: str, data: bytes) -> None:
        self._write(id + _ANSWER, data)

    def is_open(self) -> bool:
        return self._directory.is_dir()

    def put(self, id: str, data: bytes) -> None:
        self._write(id + _REQUEST, data)

    def answer_to(self, id: str) -> bytes | None:
        try:
            self._look_anew()
        except FileNotFoundError:
            return None
        return self._read(id + _ANSWER, None)

    def leave(self, id: str) -> None:
        for name in (id + _REQUEST, id + _ANSWER):
            (self._directory / name).unlink(missing_ok=True)

    def _look_anew(self) -> bool:
        """Now and then, change the directory's date: what a client of NFS remembers of it is void from then on."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_ANEW_S:
            return False
        self._looked_at = now
        os.utime(self._directory)
        return True

    def _remove_forgotten(self, names: list[str]) -> None:
        for name in names:
            if name.endswith(_REQUEST) and not name.endswith(_ANSWER):
                continue
            path = self._directory / name
            try:
                if time.time() - path.lstat().st_mtime > FORGOTTEN_S:
                    path.unlink(missing_ok=True)
            except OSError:
                pass  # A directory, or somebody else's: it is none of ours.

    def _read(self, name: str, at_most: int | None) -> bytes | None:
        try:
            # Not waited for, and not followed elsewhere: what lies there may be a pipe or a link.
            fd = os.open(self._directory / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or (at_most is not None and found.st_size > at_most):
            os.close(fd)
            return None
        with open(fd, "rb") as file:
            return file.read()

    def _write(self, name: str, data: bytes) -> None:
        part = self._directory / f"{name}.part"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
        part.rename(self._directory / name)


class StoreMailbox:
    """Objects beside the run's other ones. Looking costs a call to the store, so it is done seldom."""

    def __init__(self, connected: Callable[[], Store]) -> None:
        """`connected`: to the store, once somebody looks."""
        self._connected = connected

    @functools.cached_property
    def _store(self) -> Store:
        return self._connected()

    def open(self) -> None:
        """Remove the answers of earlier drivers that nobody has fetched."""
        for entry in self._store.entries(_PREFIX):
            if entry.key.endswith(_ANSWER):
                self._store.delete(entry.key)

    def close(self) -> None:
        """There are no directories, and answers are still to be fetched."""

    def waiting(self) -> list[str]:
        found = []
        for entry in self._store.entries(_PREFIX):
            id = entry.key.removeprefix(f"{_PREFIX}/").removesuffix(_REQUEST)
            if entry.key == f"{_PREFIX}/{id}{_REQUEST}" and _ID.fullmatch(id) and entry.size <= MAX_BYTES:
                found.append(id)
        return found

    def read(self, id: str) -> bytes | None:
        return self._read(id + _REQUEST)

    def remove(self, id: str) -> None:
        self._store.delete(f"{_PREFIX}/{id}{_REQUEST}")

    def answer(self, id: str, data: bytes) -> None:
        self._store.write(f"{_PREFIX}/{id}{_ANSWER}", data)

    def is_open(self) -> bool:
        return True

    def put(self, id: str, data: bytes) -> None:
        self._store.write(f"{_PREFIX}/{id}{_REQUEST}", data)

    def answer_to(self, id: str) -> bytes | None:
        return self._read(id + _ANSWER)

    def leave(self, id: str) -> None:
        for name in (id + _REQUEST, id + _ANSWER):
            self._store.delete(f"{_PREFIX}/{name}")

    def _read(self, name: str) -> bytes | None:
        try:
            return self._store.read(f"{_PREFIX}/{name}")
        except FileNotFoundError:
            return None
