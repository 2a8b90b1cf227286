"""Large objects that all trials of a search share: put into memory once, mapped by every worker, copied by none.

The objects are pickled once, with their large buffers apart (arrays, Arrow tables, the columns of pandas frames), into
memory without a name that the driver holds. A worker opens it through the driver's own descriptor and maps it, so what
it gets are views that cannot be written to. The memory goes with its last holder: no death of any process leaves it
behind. On a cluster, the objects are put into its object store, once.
"""

from __future__ import annotations

import mmap
import os
import pickle
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import cloudpickle

from paceline._core import system
from paceline._core.choice import Choice
from paceline.train.carried import culprit

_ALIGNMENT = 64


class Handle(Protocol):
    """What travels to a worker in the place of the objects."""

    def load(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class _Mapped:
    """Where the objects lie: in memory of the driver, by one of its descriptors."""

    pid: int
    fd: int
    inode: int
    size: int
    stream: tuple[int, int]
    buffers: tuple[tuple[int, int], ...]

    def load(self) -> dict[str, Any]:
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise RuntimeError(
                f"the objects of with_parameters cannot be reached in the memory of process {self.pid}: {error}"
            ) from error
        try:
            if os.fstat(fd).st_ino != self.inode:
                raise RuntimeError(f"process {self.pid} does not hold the objects of with_parameters any more")
            memory = mmap.mmap(fd, self.size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        # The views keep the mapping for as long as one of them is in use.
        view = memoryview(memory)
        parts = [view[begin:end] for begin, end in self.buffers]
        begin, end = self.stream
        # By our own driver, just now: nothing of it was ever stored.
        loaded: dict[str, Any] = pickle.loads(view[begin:end], buffers=parts)  # noqa: S301
        return loaded


@dataclass(frozen=True)
class _Copied:
    """The objects themselves, where the system has no memory that others can open."""

    stream: bytes

    def load(self) -> dict[str, Any]:
        loaded: dict[str, Any] = pickle.loads(self.stream)  # noqa: S301  by our own driver, just now
        return loaded


@dataclass(frozen=True)
class _OnCluster:
    """A reference to the objects in a cluster's object store."""

    reference: bytes

    def load(self) -> dict[str, Any]:
        from paceline._engine.ray.objects import got

        loaded: dict[str, Any] = got(self.reference)
        return loaded


class Shared:
    """Objects by name. They are as they were when this was made, whatever becomes of the originals."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.names = tuple(objects)
        self._on_cluster: _OnCluster | None = None
        self._reference: Any = None
        """In the cluster's store, where the objects stay for as long as this is held."""
        self._putting = threading.Lock()  # protects the two above
        buffers: list[pickle.PickleBuffer] = []
        try:
            mapped = system.on_linux()
            stream: bytes = cloudpickle.dumps(
                dict(objects), protocol=5, buffer_callback=buffers.append if mapped else None
            )
        except Exception as problem:
            found = culprit(objects)
            path, reason = (found.path, found.problem) if found is not None else ("an object", problem)
            raise TypeError(
                f"with_parameters: {path} cannot be sent to the workers: {type(reason).__name__}: {reason}\n\n"
                "hint: open files and connections inside the trainable"
            ) from problem
        self._here: Handle = self._laid_out(stream, buffers) if mapped else _Copied(stream)

    def handle(self, choice: Choice | None = None) -> Handle:
        """For workers where the choice says; without one, for processes of this machine."""
        if choice is None or choice.engine != "ray":
            return self._here
        from paceline._engine.ray.objects import put

        with self._putting:
            if self._on_cluster is None:
                self._reference, packed = put(self._here.load(), choice.address)
                self._on_cluster = _OnCluster(packed)
            return self._on_cluster

    def _laid_out(self, stream: bytes, buffers: list[pickle.PickleBuffer]) -> _Mapped:
        parts = [buffer.raw() for buffer in buffers]
        places: list[tuple[int, int]] = []
        end = 0
        for part in (*parts, memoryview(stream)):
            places.append((end, end + part.nbytes))
            end += part.nbytes + -part.nbytes % _ALIGNMENT
        fd = system.anonymous_file("paceline-parameters")
        # Of a process that ends, the system closes it.
        weakref.finalize(self, os.close, fd).atexit = False
        os.ftruncate(fd, max(end, 1))
        for (begin, _), part in zip(places, (*parts, memoryview(stream)), strict=True):
            _write_at(fd, begin, part)
        return _Mapped(os.getpid(), fd, os.fstat(fd).st_ino, max(end, 1), places[-1], tuple(places[:-1]))


def _write_at(fd: int, offset: int, data: memoryview) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
