"""Which units are being worked on, told by those who do: an actor, beside the process that takes the blocks.

Ray does the work of a process that died again by itself. Who begins it again learns here how often that was.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from paceline._engine.ray.connect import imported


class Ledger:
    def __init__(self) -> None:
        self._begun: Counter[tuple[int, int]] = Counter()

    def began(self, unit: int, stage: int) -> int:
        """How often the same was begun before and not ended."""
        self._begun[unit, stage] += 1
        return self._begun[unit, stage] - 1

    def ended(self, unit: int, stage: int) -> None:
        self._begun.pop((unit, stage), None)

    def at_work(self) -> list[int]:
        """Units that were begun and have not ended."""
        return sorted({unit for unit, _ in self._begun})


def opened() -> Any:
    """A ledger on this node; it goes with this process."""
    ray = imported()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    return ray.remote(Ledger).options(scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=True), **options).remote()
