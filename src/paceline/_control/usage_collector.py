"""Polls the ranks for their usage, and records their answers.

The polling interval grows with the number of ranks: a thousand ranks write about as many bytes per minute to the
journal as forty. It also grows with the age of an attempt, because nobody needs seconds in a plot of a day.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline._control.events import Event, StageUse, UsageMeasured
from paceline._control.extensions import Extension
from paceline._control.run import Running
from paceline._engine import messages

EVERY_S = 2.0
AT_LAST_EVERY_S = 10.0
_AGE_PER_EVERY = 300.0
"""The polling interval grows by 1 s for every 300 s of an attempt's age."""
PER_RANK_S = 0.05
PATIENCE_S = 1.0
"""How long to wait for the slowest rank; a later answer is recorded with the next measurement."""

ReadStages = Callable[[], tuple[tuple[StageUse, ...], bool]]
"""Returns the current state of the datasets, and whether their consumers wait. Neither blocks nor raises."""


def poll_interval_s(size: int, age_s: float) -> float:
    """The time between two polls of the ranks."""
    return max(EVERY_S, min(AT_LAST_EVERY_S, age_s / _AGE_PER_EVERY), PER_RANK_S * size)


class UsageCollector(Extension):
    def __init__(self, read_stages: ReadStages | None = None) -> None:
        self._read_stages = read_stages
        self._began_at = 0.0
        self._asked_at = float("-inf")
        self._usages: dict[int, messages.RankUsage] = {}
        self._first_answer_at = 0.0

    def on_attempt_started(self, size: int) -> None:
        # Do not poll workers that are starting.
        self._began_at = self._asked_at = self.control.clock.now()
        self._usages = {}

    def on_message(self, message: Any) -> bool:
        if isinstance(message, messages.WorkersStopped):  # They have sent their last usage.
            self._record()
        if not isinstance(message, messages.UsageReported):
            return False
        if message.attempt == self.control.run.attempt:
            if not self._usages:
                self._first_answer_at = self.control.clock.now()
            self._usages[message.usage.rank] = message.usage
        return True

    def poll(self) -> Sequence[Event]:
        control, run, now = self.control, self.control.run, self.control.clock.now()
        if len(self._usages) >= run.size or now - self._first_answer_at >= PATIENCE_S:
            self._record()
        is_due = now - self._asked_at >= poll_interval_s(run.size, now - self._began_at)
        if is_due and isinstance(run.phase, Running):
            self._asked_at = now
            if not control.engine.waits:
                control.broadcast(messages.MeasureUsage())
        return ()

    def _record(self) -> None:
        if self._usages:
            ranks = tuple(self._usages[rank] for rank in sorted(self._usages))
            self._usages = {}
            stages, wait = self._read_stages() if self._read_stages is not None else ((), False)
            attempt, wall = self.control.run.attempt, self.control.clock.wall()
            self.control.record_note(UsageMeasured(attempt, wall, ranks, stages, wait))
