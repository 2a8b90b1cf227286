"""What those who work on units and the one who takes their blocks tell each other: an actor, beside the latter.

Ray does the work of a process that died again by itself: who begins it again learns here how often that was. And a unit
that is larger than what may be in flight is written no faster than it is taken, which Ray Data does not see to within
one task. There is one ledger for all streams of a process, for as long as that is connected.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

from paceline._engine.ray.connect import imported

_lock = threading.Lock()  # protects the one below
_kept: dict[str, Any] = {}
"""By the connection to Ray: a process may connect again, to another cluster."""


class Ledger:
    def __init__(self) -> None:
        self._begun: Counter[tuple[str, int, int]] = Counter()
        self._taken: dict[str, Counter[int]] = {}
        """Of each open stream, the bytes that were taken of each unit."""
        self._changed = asyncio.Condition()

    async def open(self, stream: str) -> None:
        self._taken[stream] = Counter()

    async def began(self, stream: str, unit: int, stage: int) -> int:
        """How often the same was begun before and not ended."""
        self._begun[stream, unit, stage] += 1
        return self._begun[stream, unit, stage] - 1

    async def ended(self, stream: str, unit: int, stage: int) -> None:
        self._begun.pop((stream, unit, stage), None)

    async def at_work(self, stream: str) -> list[int]:
        """Units that were begun and have not ended."""
        return sorted({unit for each, unit, _ in self._begun if each == stream})

    async def taken(self, stream: str, unit: int, num_bytes: int) -> None:
        async with self._changed:
            if stream in self._taken:
                self._taken[stream][unit] += num_bytes
            self._changed.notify_all()

    async def wait(self, stream: str, unit: int, num_bytes: int) -> None:
        """Until so much of a unit is taken; at once for a stream that is not known, as after a restart."""
        async with self._changed:
            await self._changed.wait_for(lambda: stream not in self._taken or self._taken[stream][unit] >= num_bytes)

    async def forget(self, stream: str) -> None:
        async with self._changed:
            self._taken.pop(stream, None)
            self._changed.notify_all()
        for known in [known for known in self._begun if known[0] == stream]:
            del self._begun[known]


@dataclass(frozen=True)
class Notes:
    """The pages of one stream."""

    ledger: Any
    stream: str

    def began(self, unit: int, stage: int) -> int:
        deaths: int = imported().get(self.ledger.began.remote(self.stream, unit, stage))
        return deaths

    def ended(self, unit: int, stage: int) -> None:
        self.ledger.ended.remote(self.stream, unit, stage)

    def at_work(self) -> list[int]:
        units: list[int] = imported().get(self.ledger.at_work.remote(self.stream))
        return units

    def took(self, unit: int, num_bytes: int) -> None:
        self.ledger.taken.remote(self.stream, unit, num_bytes)

    def wait_for_room(self, unit: int, num_bytes: int) -> None:
        imported().get(self.ledger.wait.remote(self.stream, unit, num_bytes))

    def close(self) -> None:
        self.ledger.forget.remote(self.stream)


def opened() -> Notes:
    ray = imported()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    context = ray.get_runtime_context()
    connection = f"{context.get_job_id()} {context.get_worker_id()}"
    with _lock:
        if connection not in _kept:
            here = NodeAffinitySchedulingStrategy(context.get_node_id(), soft=True)
            options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
            _kept.clear()
            _kept[connection] = ray.remote(Ledger).options(**options).remote()
        notes = Notes(_kept[connection], uuid.uuid4().hex)
    notes.ledger.open.remote(notes.stream)
    return notes
