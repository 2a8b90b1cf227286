"""Sends units and plans to other machines.

On one machine, units only point to data in the memory or files of a process. Before they are sent, that data goes into
the object store: objects shared by the units of a source, once for all units; stored rows; and rows held by a unit
itself, once for all epochs.
"""

from __future__ import annotations

import io
import pickle
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from paceline._engine.ray.connection import import_ray
from paceline.data.exec.ray.ray_values import pack_for_ray, unpack_from_ray
from paceline.data.exec.spill import SpilledPiece
from paceline.data.sources.memory import MemoryUnit
from paceline.data.sources.shared_object import SharedObject

_put: weakref.WeakKeyDictionary[SharedObject | MemoryUnit, tuple[str, Any]] = weakref.WeakKeyDictionary()
"""The object of each value, by Ray connection: a process may reconnect, to another cluster."""
_loaded_objects: OrderedDict[Any, SharedObject] = OrderedDict()
_MAX_LOADED_OBJECTS = 4
_SMALL = 1 << 16
"""Up to this many bytes are sent inline with each unit."""
_module_paths: tuple[str, ...] = ()
"""Where the user's modules are, on this node or on another one that has them."""


def add_module_paths(paths: tuple[str, ...]) -> None:
    """Make the user's modules importable here, and in all processes that we send values to."""
    global _module_paths
    _module_paths = paths
    sys.path[:] = dict.fromkeys([*paths, *sys.path])


def pickle_with_paths(value: Any) -> bytes:
    """Pickle for `load_with_paths`, in a process that may not find the user's modules yet."""
    data: bytes = cloudpickle.dumps((_module_paths, cloudpickle.dumps(value)))
    return data


def load_with_paths(data: bytes) -> Any:
    paths, value = cloudpickle.loads(data)
    add_module_paths(paths)
    return cloudpickle.loads(value)


@dataclass(frozen=True)
class ObjectPiece:
    """Some rows of a block in the object store; the counterpart of `SpilledPiece` on one machine."""

    ref: Any
    begin: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.begin

    def part(self, begin: int, stop: int) -> ObjectPiece:
        return ObjectPiece(self.ref, self.begin + begin, self.begin + stop)

    def load(self) -> Any:
        return unpack_from_ray(import_ray().get(self.ref)).slice(self.begin, self.stop)


@dataclass(frozen=True)
class ShippedValue:
    """A pickled value for any process of the cluster: `ShippedValue.from_value(plan)`, and there `.load_value()`."""

    pickled: bytes
    refs: tuple[Any, ...]
    module_paths: tuple[str, ...] = ()

    @staticmethod
    def from_value(value: Any) -> ShippedValue:
        sink = io.BytesIO()
        pickler = _Pickler(sink)
        pickler.dump(value)
        return ShippedValue(sink.getvalue(), tuple(pickler.refs), _module_paths)

    def load_value(self) -> Any:
        add_module_paths(self.module_paths or _module_paths)
        return _Unpickler(io.BytesIO(self.pickled), self.refs).load()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, sink: io.BytesIO) -> None:
        super().__init__(sink)
        self._ray = import_ray()
        self.refs: list[Any] = []

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if isinstance(value, self._ray.ObjectRef):
            return "ref", self._add_ref(value)
        if isinstance(value, SharedObject):
            return "held", self._put_once(value, value.get), value.name
        if isinstance(value, MemoryUnit) and value.num_bytes > _SMALL:
            return "unit", self._put_once(value, lambda: pack_for_ray(value.block)), value.name
        if isinstance(value, SpilledPiece):
            return "rows", self._add_ref(self._ray.put(pack_for_ray(value.load()))), value.num_rows
        return None

    def _put_once(self, value: SharedObject | MemoryUnit, content: Callable[[], Any]) -> int:
        connection, ref = _put.get(value, ("", None))
        if connection != (here := self._ray.get_runtime_context().get_worker_id()):
            _put[value] = here, (ref := self._ray.put(content()))
        return self._add_ref(ref)

    def _add_ref(self, ref: Any) -> int:
        self.refs.append(ref)
        return len(self.refs) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, refs: tuple[Any, ...]) -> None:
        super().__init__(source)
        self._refs = refs

    def persistent_load(self, persistent_id: Any) -> Any:
        match persistent_id:
            case ("ref", number):
                return self._refs[number]
            case ("held", number, name):
                return _load_shared(self._refs[number], name)
            case ("unit", number, name):
                return MemoryUnit(name, unpack_from_ray(import_ray().get(self._refs[number])))
            case ("rows", number, num_rows):
                return ObjectPiece(self._refs[number], 0, num_rows)
        raise pickle.UnpicklingError(f"unknown persistent id {persistent_id!r}")


def _load_shared(ref: Any, name: str) -> SharedObject:
    """Return the same object each time it arrives."""
    if ref not in _loaded_objects:
        _loaded_objects[ref] = SharedObject(import_ray().get(ref), name)
        while len(_loaded_objects) > _MAX_LOADED_OBJECTS:
            _loaded_objects.popitem(last=False)
    return _loaded_objects[ref]
