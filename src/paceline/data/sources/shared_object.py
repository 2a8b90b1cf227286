"""A user object that all units of a source share, such as a torch dataset.

Units are sent to other processes one at a time, and sending the object with each would be expensive. So its pickle is
in an unnamed file, which other processes open through this one: nothing is left behind, however this process ends.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import cloudpickle

from paceline._core import system
from paceline.data.context import DataContext

_SMALL = 1 << 16
"""Up to this many bytes are sent inline with each unit."""

PickleLocation = tuple[int, int, str]
"""Process and descriptor of a file, and a token that distinguishes it from others that had the same ones."""

_lock = threading.Lock()
_received: deque[SharedObject] = deque(maxlen=4)
"""The most recent ones, for the next unit of the same source."""


class SharedObject:
    """`name` is used in messages."""

    def __init__(self, value: Any, name: str) -> None:
        self.name = name
        self._value = value
        self._loaded = True
        self._content: bytes | None = None
        self._location: PickleLocation | None = None

    def get(self) -> Any:
        with _lock:
            if not self._loaded:
                self._value = self._load()
                self._loaded = True
        return self._value

    def pack(self) -> SharedObject:
        """Pickle it now, so that an unpicklable object fails at once."""
        if self._content is not None or self._location is not None:
            return self
        with tempfile.SpooledTemporaryFile(max_size=_SMALL, dir=_spill_directory()) as file:
            try:
                cloudpickle.dump(self._value, file)
            except OSError:
                raise
            except Exception as error:
                raise TypeError(
                    f"cannot pickle {self.name} for other processes: {type(error).__name__}: {error}\n\n"
                    "hint: open files, connections and locks where they are first used, not in the constructor"
                ) from error
            if file.tell() <= _SMALL or not system.is_linux():  # elsewhere, processes cannot reach each other's files
                file.seek(0)
                self._content = file.read()
                return self
            file.flush()
            descriptor = os.dup(file.fileno())
        self._location = os.getpid(), descriptor, secrets.token_hex(8)
        weakref.finalize(self, _close_descriptor, os.getpid(), descriptor)
        return self

    def _load(self) -> Any:
        if self._content is not None:
            return cloudpickle.loads(self._content)
        assert self._location is not None  # either the content or the location was sent
        process, descriptor, _ = self._location
        try:
            with open(f"/proc/{process}/fd/{descriptor}", "rb") as file:
                return cloudpickle.load(file)
        except OSError as error:
            raise RuntimeError(
                f"cannot fetch {self.name}: process {process}, which holds it, has ended or dropped it"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        self.pack()
        return _receive_shared, (self.name, self._content, self._location)


def _receive_shared(name: str, content: bytes | None, location: PickleLocation | None) -> SharedObject:
    """Return the same object each time it arrives."""
    with _lock:
        for shared in _received:
            if (shared._content, shared._location) == (content, location):
                return shared
        shared = SharedObject(None, name)
        shared._loaded, shared._content, shared._location = False, content, location
        _received.append(shared)
    return shared


def _spill_directory() -> str | None:
    path = DataContext.get_current().spill_path
    if path is None:
        return None
    directory = Path(path).expanduser()
    system.make_private_dirs(directory)
    return str(directory)


def _close_descriptor(process: int, descriptor: int) -> None:
    if process == os.getpid():  # not in a forked child
        os.close(descriptor)
