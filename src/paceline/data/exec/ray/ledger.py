"""Which units are being worked on, told by those who do: an actor, beside the process that takes the blocks.

Ray does the work of a process that died again by itself. Who begins it again learns here how often that was. There is
one for all streams of a process, for as long as that is connected.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

from paceline._engine.ray.connect import imported

_kept: dict[str, Any] = {}
"""By the job of Ray: a process may connect again, to another cluster."""


class Ledger:
    def __init__(self) -> None:
        self._begun: Counter[tuple[str, int, int]] = Counter()

    def began(self, stream: str, unit: int, stage: int) -> int:
        """How often the same was begun before and not ended."""
        self._begun[stream, unit, stage] += 1
        return self._begun[stream, unit, stage] - 1

    def ended(self, stream: str, unit: int, stage: int) -> None:
        self._begun.pop((stream, unit, stage), None)

    def at_work(self, stream: str) -> list[int]:
        """Units that were begun and have not ended."""
        return sorted({unit for each, unit, _ in self._begun if each == stream})

    def forget(self, stream: str) -> None:
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

    def close(self) -> None:
        self.ledger.forget.remote(self.stream)


def opened() -> Notes:
    ray = imported()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    context = ray.get_runtime_context()
    connection = f"{context.get_job_id()} {context.get_worker_id()}"
    if connection not in _kept:
        here = NodeAffinitySchedulingStrategy(context.get_node_id(), soft=True)
        actor = ray.remote(Ledger).options(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)
        _kept.clear()
        _kept[connection] = actor.remote()
    return Notes(_kept[connection], uuid.uuid4().hex)
