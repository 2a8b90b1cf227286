"""Files for rows that wait for a worker that is behind: on the disk of the node that the rows are on.

A pass has one actor on each node where it needs files. The files have no name, so they are gone when the actor ends:
with the pass, with the service that started it, with the script, or killed.
"""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from paceline._core import system
from paceline._core.errors import DataError
from paceline._engine.ray import ray_private
from paceline._engine.ray.connection import import_ray
from paceline.data.exec.ray.serving.shared_pass import PieceRows
from paceline.data.exec.ray.shipping import load_with_paths, pickle_with_paths
from paceline.data.exec.spill import create_unnamed_file

_FILE_BYTES = 64 << 20
"""A file is closed, and its space free, when none of its values is needed."""
_MAX_SHARE = 16
"""Later files are larger, each at least this fraction of all bytes: so they stay few."""


@dataclass(eq=False)
class _ValueFile:
    fd: int
    end: int = 0
    num_values: int = 0


@dataclass(frozen=True, eq=False)
class _StoredValue:
    file: _ValueFile
    offset: int
    lengths: tuple[int, ...]
    """Of the pickle, and of the buffers that follow it."""


@dataclass(eq=False)
class ValueFiles:
    """Values in files without a name, in this directory. Not thread-safe."""

    root: Path
    _values: dict[int, _StoredValue] = field(default_factory=dict)
    _files: list[_ValueFile] = field(default_factory=list)
    """Values are appended to the last one."""
    _num_added: int = 0

    def add(self, value: Any) -> int:
        """Write a value; return its number."""
        buffers: list[pickle.PickleBuffer] = []
        head = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
        file = self._writable_file()
        offset = file.end
        try:
            for part in parts:
                offset = _write_fully(file.fd, part, offset)
        except OSError:
            os.ftruncate(file.fd, file.end)
            raise
        self._num_added += 1
        self._values[self._num_added] = _StoredValue(file, file.end, tuple(part.nbytes for part in parts))
        file.end, file.num_values = offset, file.num_values + 1
        return self._num_added

    def take(self, number: int) -> Any:
        """Read a value, and keep it no longer."""
        stored = self._values[number]
        offset, buffers = stored.offset, []
        for length in stored.lengths:
            buffers.append(_read_fully(stored.file.fd, offset, length))
            offset += length
        self.discard(number)
        return pickle.loads(buffers[0], buffers=buffers[1:])  # noqa: S301

    def discard(self, number: int) -> None:
        file = self._values.pop(number).file
        file.num_values -= 1
        if not file.num_values:
            self._files.remove(file)
            os.close(file.fd)

    @property
    def num_bytes(self) -> int:
        """The size of the files."""
        return sum(file.end for file in self._files)

    def close(self) -> None:
        for file in self._files:
            os.close(file.fd)
        self._files.clear()
        self._values.clear()

    def _writable_file(self) -> _ValueFile:
        if not self._files or self._files[-1].end >= max(_FILE_BYTES, self.num_bytes // _MAX_SHARE):
            self._files.append(_ValueFile(create_unnamed_file(self.root)))
        return self._files[-1]


def _write_fully(fd: int, data: memoryview, offset: int) -> int:
    """Return where it ends."""
    while data.nbytes:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
    return offset


def _read_fully(fd: int, offset: int, length: int) -> Any:
    data = np.empty(length, np.uint8)
    rest = data.data
    while rest.nbytes:
        num_read = os.preadv(fd, [rest], offset)
        if not num_read:
            raise OSError(f"a file ends {rest.nbytes} bytes too early")
        rest, offset = rest[num_read:], offset + num_read
    return data


class RowFiles:
    """The actor. It writes values of the object store to files, and puts them into the object store again."""

    def __init__(self, root: bytes) -> None:
        self._root = Path(load_with_paths(root) or tempfile.gettempdir()).expanduser()
        self._files = ValueFiles(self._root)

    def store(self, refs: list[Any]) -> tuple[list[int], str, str]:
        """Return the numbers of the values; host and directory; and, if they cannot be written, why."""
        where = f"{self._root} on {socket.gethostname()} ({import_ray().util.get_node_ip_address()})"
        numbers: list[int] = []
        try:
            system.make_private_dirs(self._root)
            for ref in refs:
                numbers.append(self._files.add(import_ray().get(ref)))
        except OSError as error:
            for number in numbers:
                self._files.discard(number)
            return [], where, error.strerror or str(error)
        return numbers, where, ""

    def load(self, number: int) -> Any:
        return self._files.take(number)

    def discard(self, numbers: list[int]) -> None:
        for number in numbers:
            self._files.discard(number)


@dataclass(frozen=True)
class FilePlace:
    """Where rows are: in a file of an actor."""

    actor: Any
    number: int


class PassFiles:
    """All files of a pass. Its methods may block, except `load`."""

    def __init__(self, root: str | None) -> None:
        self._root = pickle_with_paths(root)
        self._actors: dict[str, Any] = {}
        """By node."""

    def store(self, all_rows: Sequence[PieceRows]) -> tuple[list[tuple[PieceRows, FilePlace]], list[str]]:
        """Write rows to files of their nodes; return where each is, and the directories and hosts."""
        ray = import_ray()
        refs = [rows.ref for rows in all_rows]
        rows_by_node: dict[str, list[tuple[PieceRows, Any]]] = {}
        for (rows, ref), node in zip(zip(all_rows, refs, strict=True), _find_nodes(refs), strict=True):
            rows_by_node.setdefault(node, []).append((rows, ref))
        answers = {
            node: self._actor(node).store.remote([ref for _, ref in here]) for node, here in rows_by_node.items()
        }
        places, hosts = [], []
        for node, here in rows_by_node.items():
            try:
                numbers, where, problem = ray.get(answers[node])
            except ray.exceptions.RayError as error:
                raise DataError(f"lost rows on the cluster that wait for a worker that is behind: {error}") from error
            if problem:
                raise DataError(
                    f"cannot write rows that wait for a worker that is behind to a file in {where}: {problem}\n\n"
                    "hint: make all workers read at the same pace, free disk space there, or set "
                    "DataContext.get_current().spill_path to a directory with more of it"
                )
            hosts.append(where)
            actor = self._actor(node)
            places += [(rows, FilePlace(actor, number)) for (rows, _), number in zip(here, numbers, strict=True)]
        return places, hosts

    @staticmethod
    def load(place: FilePlace) -> Any:
        """Start to put the rows into the object store, and return a reference. They are no longer in the file."""
        return place.actor.load.remote(place.number)

    @staticmethod
    def discard(places: Sequence[FilePlace]) -> None:
        for actor in {id(place.actor): place.actor for place in places}.values():
            actor.discard.remote([place.number for place in places if place.actor is actor])

    def close(self) -> None:
        for actor in self._actors.values():
            import_ray().kill(actor)
        self._actors.clear()

    def _actor(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if node not in self._actors:
            there = NodeAffinitySchedulingStrategy(node, soft=True)
            self._actors[node] = (
                import_ray().remote(RowFiles).options(num_cpus=0, scheduling_strategy=there).remote(self._root)
            )
        return self._actors[node]


def _find_nodes(refs: Sequence[Any]) -> list[str]:
    """The node of each object, once it exists; this one for small objects, which their owner keeps in its memory."""
    ray = import_ray()
    ray.wait(list(refs), num_returns=len(refs), fetch_local=False)
    here = ray.get_runtime_context().get_node_id()
    locations = ray_private.get_object_locations(refs)
    return [next(iter(locations.get(ref, {}).get("node_ids") or ()), here) for ref in refs]
