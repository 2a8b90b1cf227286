"""Units and plans on their way to other machines.

What lies in the memory or in the files of one process, and is only pointed to on one machine, is put into the object
store: objects that the units of a source share, once for all of them, rows that were set aside, and rows that a unit
itself holds, once for all epochs.
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

from paceline._engine.ray.connect import imported
from paceline.data.exec.ray.values import packed, unpacked
from paceline.data.exec.spill import Piece
from paceline.data.sources.held import Held
from paceline.data.sources.memory import Rows

_put: weakref.WeakKeyDictionary[Held | Rows, tuple[str, Any]] = weakref.WeakKeyDictionary()
"""Where each lies, by the connection to Ray: a process may connect again, to another cluster."""
_arrived: OrderedDict[Any, Held] = OrderedDict()
_MOST_ARRIVED = 4
_SMALL = 1 << 16
"""So many bytes may as well go with each unit."""
_homes: tuple[str, ...] = ()
"""Where the modules of the user lie, on this node or another one that has them."""


def have_modules(homes: tuple[str, ...]) -> None:
    """Have the user's modules found here, and in all processes that something is sent to from here."""
    global _homes
    _homes = homes
    sys.path[:] = dict.fromkeys([*homes, *sys.path])


def pickled(value: Any) -> bytes:
    """For `loaded`, in a process that may not know of the user's modules yet."""
    data: bytes = cloudpickle.dumps((_homes, cloudpickle.dumps(value)))
    return data


def loaded(data: bytes) -> Any:
    homes, value = cloudpickle.loads(data)
    have_modules(homes)
    return cloudpickle.loads(value)


@dataclass(frozen=True)
class Lot:
    """Some rows of a block that lies in the object store: what a `Piece` is on one machine."""

    ref: Any
    begin: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.begin

    def part(self, begin: int, stop: int) -> Lot:
        return Lot(self.ref, self.begin + begin, self.begin + stop)

    def load(self) -> Any:
        return unpacked(imported().get(self.ref)).slice(self.begin, self.stop)


@dataclass(frozen=True)
class Carried:
    """Something pickled that can be sent anywhere on the cluster: `Carried.of(plan)`, and there `.value()`."""

    pickled: bytes
    refs: tuple[Any, ...]
    homes: tuple[str, ...] = ()

    @staticmethod
    def of(value: Any) -> Carried:
        sink = io.BytesIO()
        pickler = _Pickler(sink)
        pickler.dump(value)
        return Carried(sink.getvalue(), tuple(pickler.refs), _homes)

    def value(self) -> Any:
        have_modules(self.homes or _homes)
        return _Unpickler(io.BytesIO(self.pickled), self.refs).load()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, sink: io.BytesIO) -> None:
        super().__init__(sink)
        self._ray = imported()
        self.refs: list[Any] = []

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if isinstance(value, self._ray.ObjectRef):
            return "ref", self._number(value)
        if isinstance(value, Held):
            return "held", self._once(value, value.get), value.name
        if isinstance(value, Rows) and value.num_bytes > _SMALL:
            return "unit", self._once(value, lambda: packed(value.block)), value.name
        if isinstance(value, Piece):
            return "rows", self._number(self._ray.put(packed(value.load()))), value.num_rows
        return None

    def _once(self, value: Held | Rows, content: Callable[[], Any]) -> int:
        connection, ref = _put.get(value, ("", None))
        if connection != (here := self._ray.get_runtime_context().get_worker_id()):
            _put[value] = here, (ref := self._ray.put(content()))
        return self._number(ref)

    def _number(self, ref: Any) -> int:
        self.refs.append(ref)
        return len(self.refs) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, refs: tuple[Any, ...]) -> None:
        super().__init__(source)
        self._refs = refs

    def persistent_load(self, told: Any) -> Any:
        match told:
            case ("ref", number):
                return self._refs[number]
            case ("held", number, name):
                return _held(self._refs[number], name)
            case ("unit", number, name):
                return Rows(name, unpacked(imported().get(self._refs[number])))
            case ("rows", number, num_rows):
                return Lot(self._refs[number], 0, num_rows)
        raise pickle.UnpicklingError(f"{told!r} is nothing that was carried")


def _held(ref: Any, name: str) -> Held:
    """One for each, however often it comes."""
    if ref not in _arrived:
        _arrived[ref] = Held(imported().get(ref), name)
        while len(_arrived) > _MOST_ARRIVED:
            _arrived.popitem(last=False)
    return _arrived[ref]
