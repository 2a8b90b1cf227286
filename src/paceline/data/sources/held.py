"""An object of the user's that all units of a source share, such as a torch dataset.

Units go to other processes one at a time, and it would be much to send it along with each. So what it is pickled to
lies in a file that has no name, which the processes open through this one: nothing of it stays behind, however it ends.
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
"""So many bytes may as well go with each unit."""

Place = tuple[int, int, str]
"""Process and descriptor of a file, and a mark that tells it from others that had the same."""

_lock = threading.Lock()
_arrived: deque[Held] = deque(maxlen=4)
"""The last ones, for the next unit of the same source."""


class Held:
    """`name` is what messages call it."""

    def __init__(self, value: Any, name: str) -> None:
        self.name = name
        self._value = value
        self._loaded = True
        self._content: bytes | None = None
        self._place: Place | None = None

    def get(self) -> Any:
        with _lock:
            if not self._loaded:
                self._value = self._load()
                self._loaded = True
        return self._value

    def pack(self) -> Held:
        """Pickles it now, so that what cannot be is said at once."""
        if self._content is not None or self._place is not None:
            return self
        with tempfile.SpooledTemporaryFile(max_size=_SMALL, dir=_directory()) as file:
            try:
                cloudpickle.dump(self._value, file)
            except OSError:
                raise
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                raise TypeError(
                    f"{self.name} cannot be pickled, so no other process can read it: {what}\n\n"
                    "hint: open files, connections and locks where they are first used, not in the constructor"
                ) from error
            if file.tell() <= _SMALL or not system.on_linux():  # elsewhere no process can reach another's files
                file.seek(0)
                self._content = file.read()
                return self
            file.flush()
            descriptor = os.dup(file.fileno())
        self._place = os.getpid(), descriptor, secrets.token_hex(8)
        weakref.finalize(self, _closed, os.getpid(), descriptor)
        return self

    def _load(self) -> Any:
        if self._content is not None:
            return cloudpickle.loads(self._content)
        assert self._place is not None  # one of the two came with it
        process, descriptor, _ = self._place
        try:
            with open(f"/proc/{process}/fd/{descriptor}", "rb") as file:
                return cloudpickle.load(file)
        except OSError as error:
            raise RuntimeError(
                f"{self.name} cannot be fetched: the process that has it ({process}) has ended, or dropped it"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        self.pack()
        return _arriving, (self.name, self._content, self._place)


def _arriving(name: str, content: bytes | None, place: Place | None) -> Held:
    """One for each, however often it comes."""
    with _lock:
        for held in _arrived:
            if (held._content, held._place) == (content, place):
                return held
        held = Held(None, name)
        held._loaded, held._content, held._place = False, content, place
        _arrived.append(held)
    return held


def _directory() -> str | None:
    path = DataContext.get_current().spill_path
    if path is None:
        return None
    directory = Path(path).expanduser()
    system.make_private_dirs(directory)
    return str(directory)


def _closed(process: int, descriptor: int) -> None:
    if process == os.getpid():  # and not in a process that was forked from it
        os.close(descriptor)
