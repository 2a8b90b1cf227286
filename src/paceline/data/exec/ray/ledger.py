"""An actor through which the tasks that process units and the consumer of their blocks share information.

Ray repeats the work of a process that died: the repeated task learns here how often that has happened. And a unit
larger than the in-flight limit is written no faster than it is consumed, which Ray Data does not enforce within one
task. There is one ledger for all streams of a process, on its node, while the process is connected to Ray.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

from paceline._engine.ray.connection import import_ray

_lock = threading.Lock()  # protects `_ledgers`
_ledgers: dict[str, Any] = {}
"""By Ray connection: a process may reconnect, to another cluster."""


class UnitLedger:
    def __init__(self) -> None:
        self._begun: Counter[tuple[str, int, int]] = Counter()
        self._taken: dict[str, Counter[int]] = {}
        """For each open stream, the bytes taken of each unit."""
        self._changed = asyncio.Condition()

    async def open(self, stream: str) -> None:
        self._taken[stream] = Counter()

    async def begin_unit(self, stream: str, unit: int, stage: int) -> int:
        """Return how often this unit and stage were started before without finishing."""
        self._begun[stream, unit, stage] += 1
        return self._begun[stream, unit, stage] - 1

    async def end_unit(self, stream: str, unit: int, stage: int) -> None:
        self._begun.pop((stream, unit, stage), None)

    async def units_at_work(self, stream: str) -> list[int]:
        """Units that have started and not finished."""
        return sorted({unit for each, unit, _ in self._begun if each == stream})

    async def add_taken(self, stream: str, unit: int, num_bytes: int) -> None:
        async with self._changed:
            if stream in self._taken:
                self._taken[stream][unit] += num_bytes
            self._changed.notify_all()

    async def wait(self, stream: str, unit: int, num_bytes: int) -> None:
        """Wait until `num_bytes` of a unit are taken. Returns at once for an unknown stream, as after a restart."""
        async with self._changed:
            await self._changed.wait_for(lambda: stream not in self._taken or self._taken[stream][unit] >= num_bytes)

    async def forget_stream(self, stream: str) -> None:
        async with self._changed:
            self._taken.pop(stream, None)
            self._changed.notify_all()
        for key in [key for key in self._begun if key[0] == stream]:
            del self._begun[key]


@dataclass(frozen=True)
class StreamLedger:
    """The part of the ledger that belongs to one stream."""

    ledger: Any
    stream: str

    def begin_unit(self, unit: int, stage: int) -> int:
        deaths: int = import_ray().get(self.ledger.begin_unit.remote(self.stream, unit, stage))
        return deaths

    def end_unit(self, unit: int, stage: int) -> None:
        self.ledger.end_unit.remote(self.stream, unit, stage)

    def units_at_work(self) -> list[int]:
        units: list[int] = import_ray().get(self.ledger.units_at_work.remote(self.stream))
        return units

    def add_taken(self, unit: int, num_bytes: int) -> None:
        self.ledger.add_taken.remote(self.stream, unit, num_bytes)

    def wait_for_room(self, unit: int, num_bytes: int) -> None:
        import_ray().get(self.ledger.wait.remote(self.stream, unit, num_bytes))

    def close(self) -> None:
        self.ledger.forget_stream.remote(self.stream)


def open_stream_ledger() -> StreamLedger:
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    context = ray.get_runtime_context()
    connection = f"{context.get_job_id()} {context.get_worker_id()}"
    with _lock:
        if connection not in _ledgers:
            here = NodeAffinitySchedulingStrategy(context.get_node_id(), soft=True)
            options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
            _ledgers.clear()
            _ledgers[connection] = ray.remote(UnitLedger).options(**options).remote()
        stream_ledger = StreamLedger(_ledgers[connection], uuid.uuid4().hex)
    stream_ledger.ledger.open.remote(stream_ledger.stream)
    return stream_ledger
