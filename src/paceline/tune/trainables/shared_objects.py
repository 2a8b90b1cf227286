"""What the driver pickles once for the workers of all trials: the trainable, and large objects that trials share.

Shared objects are pickled with their large buffers (arrays, Arrow tables, columns of pandas frames) out of band, into
anonymous memory that the driver holds and every worker maps read-only, through the driver's descriptor. It is freed
with its last holder: no crash can leak it. On a cluster, the objects are put into its object store, once.
"""

from __future__ import annotations

import functools
import logging
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
from paceline._core.engine_choice import EngineChoice
from paceline.train.backend import BackendConfig
from paceline.train.driver.job import explain_unpicklable, pickle_job

_ALIGNMENT = 64
_LARGE_BYTES = 20_000_000

log = logging.getLogger("paceline")


class SharedObjectsHandle(Protocol):
    """What is sent to a worker in place of the objects."""

    def load(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class _MappedHandle:
    """Locates the objects: in the driver's memory, by one of its descriptors."""

    pid: int
    fd: int
    inode: int
    size: int
    stream: tuple[int, int]
    buffers: tuple[tuple[int, int], ...]

    def load(self) -> dict[str, Any]:
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDONLY)
        except OSError as error:
            raise RuntimeError(
                f"cannot open the objects of with_parameters in the memory of process {self.pid}: {error}"
            ) from error
        try:
            if os.fstat(fd).st_ino != self.inode:
                raise RuntimeError(f"process {self.pid} no longer holds the objects of with_parameters")
            memory = mmap.mmap(fd, self.size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        # The views keep the mapping alive while any of them is in use.
        view = memoryview(memory)
        parts = [view[begin:end] for begin, end in self.buffers]
        begin, end = self.stream
        # Safe to unpickle: our own driver just wrote it, and it was never stored.
        loaded: dict[str, Any] = pickle.loads(view[begin:end], buffers=parts)  # noqa: S301
        return loaded


@dataclass(frozen=True)
class _CopiedHandle:
    """The objects themselves, for systems without memory that other processes can open."""

    stream: bytes

    def load(self) -> dict[str, Any]:
        loaded: dict[str, Any] = pickle.loads(self.stream)  # noqa: S301
        return loaded


@dataclass(frozen=True)
class _ObjectStoreHandle:
    """A reference to the objects in a cluster's object store."""

    reference: bytes

    def load(self) -> dict[str, Any]:
        from paceline._engine.ray.connection import get_object

        loaded: dict[str, Any] = get_object(self.reference)
        return loaded


class SharedObjects:
    """Objects by name, as they were when this was created; later changes to the originals have no effect."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.names = tuple(objects)
        self._cluster_handle: _ObjectStoreHandle | None = None
        self._reference: Any = None
        """In the cluster's object store; the objects stay there as long as this is held."""
        self._putting = threading.Lock()  # protects the two above
        buffers: list[pickle.PickleBuffer] = []
        try:
            mapped = system.is_linux()
            stream: bytes = cloudpickle.dumps(
                dict(objects), protocol=5, buffer_callback=buffers.append if mapped else None
            )
        except Exception as problem:
            path, reason = explain_unpicklable(objects, "an object", problem)
            raise TypeError(
                f"with_parameters: {path} cannot be sent to the workers: {reason}\n\n"
                "hint: open files and connections inside the trainable"
            ) from problem
        self._local_handle: SharedObjectsHandle = (
            self._write_to_memory(stream, buffers) if mapped else _CopiedHandle(stream)
        )

    def make_handle(self, choice: EngineChoice | None = None) -> SharedObjectsHandle:
        """Return a handle for workers of the chosen engine; by default, for processes on this machine."""
        if choice is None or choice.engine != "ray":
            return self._local_handle
        from paceline._engine.ray.connection import put_object

        with self._putting:
            if self._cluster_handle is None:
                self._reference, packed = put_object(self._local_handle.load(), choice.address)
                self._cluster_handle = _ObjectStoreHandle(packed)
            return self._cluster_handle

    def _write_to_memory(self, stream: bytes, buffers: list[pickle.PickleBuffer]) -> _MappedHandle:
        parts = [*(buffer.raw() for buffer in buffers), memoryview(stream)]
        places: list[tuple[int, int]] = []
        end = 0
        for part in parts:
            places.append((end, end + part.nbytes))
            end += part.nbytes + -part.nbytes % _ALIGNMENT
        fd = system.create_anonymous_file("paceline-parameters")
        # At process exit, the system closes it.
        weakref.finalize(self, os.close, fd).atexit = False
        os.ftruncate(fd, max(end, 1))
        for (begin, _), part in zip(places, parts, strict=True):
            _write_at(fd, begin, part)
        return _MappedHandle(os.getpid(), fd, os.fstat(fd).st_ino, max(end, 1), places[-1], tuple(places[:-1]))


def _write_at(fd: int, offset: int, data: memoryview) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


class PickledTrainable:
    """Gives `value` in any process."""

    def __init__(self, data: bytes, original: Any = None) -> None:
        self._data = data
        self.original = original
        """The pickled object, in the process that pickled it."""

    @functools.cached_property
    def value(self) -> Any:
        value, _, _ = cloudpickle.loads(self._data)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return PickledTrainable, (self._data,)


def pickle_trainable(value: Any, name: str) -> PickledTrainable:
    """Pickle the value as it is now; an error names what does not pickle."""
    try:
        data = pickle_job(value, None, BackendConfig())
    except TypeError as error:
        text = str(error).replace("train_loop_per_worker", name)
        raise TypeError(text) from error.__cause__
    if len(data) > _LARGE_BYTES:
        text = "%s carries %d MB to every trial\n\nhint: tune.with_parameters(%s, data=...) shares large objects"
        log.warning(text, name, len(data) // 1_000_000, name)
    return PickledTrainable(data, value)
