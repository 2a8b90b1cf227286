"""The data processes of a schedule, in pools: readers, and one pool for each stage with processes of its own."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

from paceline.data.exec import schedule_state as s

MAX_STARTS = 3
"""How many processes of a pool may exit in a row before one of them is ready."""


class ProcessPools:
    def __init__(self, num_readers: int, numbers: Iterator[int], commands: list[s.ScheduleCommand]) -> None:
        self.bounds: dict[Hashable, s.PoolBounds] = {s.READERS: s.PoolBounds(0, num_readers)}
        self.processes: dict[int, s.ProcessState] = {}
        self._numbers = numbers
        self._commands = commands
        self._bad_starts: dict[Hashable, int] = {}

    def live(self, pool: Hashable) -> list[s.ProcessState]:
        return [process for process in self.processes.values() if process.pool == pool and not process.is_retired]

    def list_idle(self) -> dict[Hashable, list[s.ProcessState]]:
        """By pool, the processes that could work now."""
        idle: dict[Hashable, list[s.ProcessState]] = {}
        for process in self.processes.values():
            if process.is_ready and process.work is None and not process.is_retired:
                idle.setdefault(process.pool, []).append(process)
        return idle

    def retire_if_spare(self, number: int, used: Collection[Hashable]) -> None:
        """Retire a process without work, down to the least of a pool that is used."""
        process = self.processes.get(number)
        if process is None or process.work is not None or not process.is_ready or process.is_retired:
            return
        least = self.bounds[process.pool].least if process.pool in used or process.pool == s.READERS else 0
        if len(self.live(process.pool)) > least:
            self.retire(process)

    def launch(self, pool: Hashable, num: int) -> bool:
        """Launch processes. False if the last ones have all exited before they were ready."""
        for _ in range(num):
            if self._bad_starts.get(pool, 0) >= MAX_STARTS:
                del self._bad_starts[pool]
                return False
            process = s.ProcessState(next(self._numbers), pool)
            self.processes[process.number] = process
            self._commands.append(s.LaunchProcess(process.number, pool))
        return True

    def mark_ready(self, number: int) -> None:
        process = self.processes[number]
        process.is_ready = True
        self._bad_starts.pop(process.pool, None)

    def count_bad_start(self, process: s.ProcessState) -> None:
        """Count an exit, unless the process was ready or retired."""
        if not process.is_ready and not process.is_retired:
            self._bad_starts[process.pool] = self._bad_starts.get(process.pool, 0) + 1

    def retire(self, process: s.ProcessState) -> None:
        process.is_retired = True
        self._commands.append(s.RetireProcess(process.number))

    def will_free_up(self, pool: Hashable, stream: int) -> bool:
        """Whether a process of the pool will become free by itself: one that waits for room or for others may not."""
        return any(
            work is None
            or (work.stream == stream and not work.is_over and work.requested_bytes is None and not work.needs_input)
            for work in (process.work for process in self.live(pool))
        )
