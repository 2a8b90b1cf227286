"""What is done in Ray's processes: a unit is read and sent through a stage, or goes on to the next one.

Between two stages all blocks of a unit are one row of Ray Data, as a stage has to see the whole of a unit for its
batches to be those of one machine. After the last stage every block is a row of its own, and another row before it says
what it is: that one is small, so it is known where the block belongs without fetching it. Errors are rows as well. So
they arrive in the order of the rows, and Ray has nothing to wrap.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import xxhash

from paceline._core.errors import DataError
from paceline._engine.ray.connect import imported
from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec import packed as layout
from paceline.data.exec.failure import Failure, failure
from paceline.data.exec.pipeline import Stage
from paceline.data.exec.ray import carry, values
from paceline.data.exec.ray.carry import Carried
from paceline.data.exec.ray.ledger import Notes
from paceline.data.exec.sizes import pieces
from paceline.data.exec.stats import Meter
from paceline.data.source import Unit
from paceline.data.transform import Scope, Skipped, Transform

_JOBS_KEPT = 16


class Done(msgspec.Struct, array_like=True):
    """What one stage did for one unit."""

    stage: int
    title: str
    meter: Meter


class Head(msgspec.Struct):
    """What a row says of itself, or of the one that comes next."""

    unit: int
    name: str
    chain: int
    kind: str
    """`unit`: on its way, with all its blocks. `block`: the next row is one. `end`: no more of this unit."""
    offset: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    """What the rows take as a block."""
    length: int = 0
    """What they take packed."""
    ends: list[int] = []
    done: list[Done] = []
    skipped: list[Skipped] = []
    failure: Failure | None = None
    pickled: bytes = b""

    @staticmethod
    def of(encoded: bytes) -> Head:
        return msgspec.msgpack.decode(encoded, type=Head)

    def row(self, data: Any = None) -> Any:
        return values.row(msgspec.msgpack.encode(self), data)


@dataclass(frozen=True)
class Step:
    """A stage of a chain as it is sent: what is large about it lies in the object store, once for all units."""

    number: int
    chain: int
    title: str
    last: bool
    key: str
    job: Any
    notes: Notes
    ahead: int
    """How many bytes of a unit may lie there that nobody has taken."""
    at: tuple[int, int]
    """The unit that is begun in its middle, and the row there."""


def step_of(
    stage: Stage, number: int, chain: int, *, last: bool, notes: Notes, ahead: int, at: tuple[int, int]
) -> Step:
    title = stage.name if number else f"read -> {stage.name}" if stage.name else "read"
    pickled = carry.pickled((stage.transforms, DataContext.get_current()))
    key = xxhash.xxh3_128_hexdigest(pickled)
    return Step(number, chain, title, last, key, imported().put(pickled), notes, ahead, at)


class _Job:
    """The transforms of a stage, with what they have made; kept for the units and epochs to come."""

    def __init__(self, pickled: bytes) -> None:
        self.transforms: tuple[Transform, ...]
        self.transforms, self.context = carry.loaded(pickled)
        self.scope = Scope()


_jobs: OrderedDict[str, _Job] = OrderedDict()


def _job(step: Step) -> _Job:
    if step.key not in _jobs:
        _jobs[step.key] = _Job(imported().get(step.job))
        while len(_jobs) > _JOBS_KEPT:
            _jobs.popitem(last=False)
    _jobs.move_to_end(step.key)
    DataContext._current = _jobs[step.key].context
    DataContext.in_data_process = True
    return _jobs[step.key]


@dataclass(frozen=True)
class ReadUnit:
    """Reads one unit, and sends it through the first stage of its chain."""

    step: Step
    index: int
    name: str
    unit: Carried

    def __call__(self) -> Iterator[Any]:
        head = Head(self.index, self.name, self.step.chain, "unit")
        return _worked(self.step, head, self._read)

    def _read(self) -> Iterator[Block]:
        unit: Unit = self.unit.value()
        return unit.read()


class PoolStage:
    """An actor of a pool: sends units of its chain through a stage; whatever else comes by goes on as it is."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def __call__(self, table: Any) -> Iterator[Any]:
        for number in range(table.num_rows):
            encoded = values.head_of(table, number)
            head = None if encoded is None else Head.of(encoded)
            if head is None or head.kind != "unit" or head.chain != self._step.chain:
                yield table.slice(number, 1)
                continue
            data = values.data_of(table, number) if head.ends else b""
            yield from _worked(self._step, head, partial(_handed_on, head, data))


class _Failed(Exception):
    """The stage before could not go on after these blocks."""


def _handed_on(head: Head, data: Any) -> Iterator[Block]:
    yield from values.unframed(data, head.ends)
    if head.failure is not None:
        raise _Failed


def _worked(step: Step, head: Head, read: Callable[[], Iterator[Block]]) -> Iterator[Any]:
    job = _job(step)
    scope, meter, started = job.scope, Meter(), time.perf_counter()
    scope.unit = head.name
    scope.skipped.clear()
    told, pickled = head.failure, head.pickled
    kept: list[Any] = []
    skip = step.at[1] if step.at[0] == head.unit else 0
    passed = written = 0
    try:
        deaths = step.notes.began(head.unit, step.number)
        if deaths > job.context.max_unit_failures:
            raise DataError(
                f"{head.name}: the process that worked on it died {deaths} times\n\n"
                "hint: DataContext.max_unit_failures says how often a unit is done again"
            )
        blocks = read()
        for transform in job.transforms:
            blocks = transform.apply(blocks, scope)
        for block in blocks:
            if not step.last:
                kept.append(layout.as_bytes(block))
                meter.num_rows, meter.num_bytes = meter.num_rows + block.num_rows, meter.num_bytes + len(kept[-1])
                continue
            for begin, stop in pieces(block, max(skip - passed, 0)):
                part = block.slice(begin, stop)
                data = layout.as_bytes(part)
                meter.num_rows, meter.num_bytes = meter.num_rows + stop - begin, meter.num_bytes + len(data)
                place = passed + begin, part.num_rows, part.nbytes, len(data)
                said = Head(head.unit, head.name, head.chain, "block", *place)
                began = time.perf_counter()
                if written > step.ahead:
                    step.notes.wait_for_room(head.unit, written - step.ahead)
                written += len(data)
                yield said.row()
                yield values.row(None, data)
                meter.waited_for_room += time.perf_counter() - began
            passed += block.num_rows
    except _Failed:
        pass
    except (Exception, SystemExit) as error:  # noqa: BLE001  whoever waits for the rows is to know
        told, pickled = failure(error, "" if isinstance(error, DataError) else head.name)
    step.notes.ended(head.unit, step.number)
    framed, ends = values.framed(kept)
    yield Head(
        head.unit,
        head.name,
        head.chain,
        "end" if step.last else "unit",
        ends=ends,
        done=[*head.done, Done(step.number, step.title, meter.closed(time.perf_counter() - started))],
        skipped=[*head.skipped, *scope.skipped],
        failure=told,
        pickled=pickled,
    ).row(framed)
