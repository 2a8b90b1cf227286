"""Observations of one rank: its signs of life, and where it was in each sample. Values and times.

This module decides whether the rank stands still and whether it computes; `hang_detector.py` draws the conclusions.
"""

from collections import deque
from dataclasses import dataclass

from paceline._control.events import Reported
from paceline._core.system import ProcessStatus
from paceline._engine.messages import StacksSampled

NUM_SAMPLES = 3
MUTE_S = 3.0
"""How late an answer may be on a busy machine before it counts as missing."""
BUSY_CORES = 0.1
"""In cores; a waiting rank uses about 0.01."""
BUSY_BYTES = 1 << 20


@dataclass(frozen=True)
class RankObservation:
    at: float
    sample: StacksSampled | None
    condition: ProcessStatus | None

    @property
    def location(self) -> object:
        if self.sample is None:
            return None
        return self.sample.main, self.sample.called


class RankTracker:
    """One rank in this attempt."""

    def __init__(self, now: float) -> None:
        self.last_sign_at = now
        self.reported_at: float | None = None
        self.last_report: Reported | None = None
        self.has_returned = False
        self.pid = 0
        self.last_answered = 0
        self.standing_since = now
        self.observations: deque[RankObservation] = deque(maxlen=NUM_SAMPLES)
        """Samples at the place where the rank has been since `standing_since`."""

    def add_observation(self, seen: RankObservation) -> None:
        if self.observations:
            before, again = self.observations[-1], seen.sample
            answers = before.sample is not None and again is not None
            if again is not None and (
                again.has_moved or (answers and (again.is_new_call or seen.location != before.location))
            ):
                self.last_sign_at = seen.at
            if seen.location != before.location or self.last_sign_at == seen.at:
                self.observations.clear()
        elif seen.sample is not None and seen.sample.has_moved:
            self.last_sign_at = seen.at
        if not self.observations:
            self.standing_since = seen.at
        self.observations.append(seen)

    def is_standing(self, now: float) -> bool:
        if len(self.observations) < NUM_SAMPLES or self.last_sign_at > self.standing_since:
            return False
        return self.observations[-1].sample is not None or now - self.standing_since >= MUTE_S

    def is_computing(self) -> bool:
        first, last = self.observations[0], self.observations[-1]
        if last.condition is None or first.condition is None or last.at <= first.at:
            return False
        cpu = (last.condition.cpu_s - first.condition.cpu_s) / (last.at - first.at)
        num_bytes = last.condition.num_bytes - first.condition.num_bytes
        return cpu >= BUSY_CORES or num_bytes >= BUSY_BYTES or last.condition.state == "R"
