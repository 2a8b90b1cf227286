"""What has been seen of one rank: its signs of life, and where it stood each time that it was asked. Values and dates.

Whether it stands, and whether it computes, is said here; what follows from that, in `hangs.py`.
"""

from collections import deque
from dataclasses import dataclass

from paceline._control.events import Reported
from paceline._core.system import Condition
from paceline._engine.messages import Sampled

SAMPLES = 3
MUTE_S = 3.0
"""How long a rank may be late in answering, on a machine that is busy, before that means something."""
BUSY = 0.1
"""Of one core; a rank that waits takes a hundredth."""
BUSY_BYTES = 1 << 20


@dataclass(frozen=True)
class Seen:
    at: float
    sample: Sampled | None
    condition: Condition | None

    @property
    def place(self) -> object:
        if self.sample is None:
            return None
        return self.sample.main, self.sample.called


class Rank:
    """One rank in this attempt."""

    def __init__(self, now: float) -> None:
        self.sign = now
        self.reported_at: float | None = None
        self.last: Reported | None = None
        self.returned = False
        self.pid = 0
        self.answered = 0
        self.since = now
        self.seen: deque[Seen] = deque(maxlen=SAMPLES)
        """At the place where it has stood since `since`."""

    def look(self, seen: Seen) -> None:
        if self.seen:
            before, again = self.seen[-1], seen.sample
            answers = before.sample is not None and again is not None
            if again is not None and (again.moved or (answers and (again.fresh or seen.place != before.place))):
                self.sign = seen.at
            if seen.place != before.place or self.sign == seen.at:
                self.seen.clear()
        elif seen.sample is not None and seen.sample.moved:
            self.sign = seen.at
        if not self.seen:
            self.since = seen.at
        self.seen.append(seen)

    def stands(self, now: float) -> bool:
        if len(self.seen) < SAMPLES or self.sign > self.since:
            return False
        return self.seen[-1].sample is not None or now - self.since >= MUTE_S

    def computes(self) -> bool:
        first, last = self.seen[0], self.seen[-1]
        if last.condition is None or first.condition is None or last.at <= first.at:
            return False
        cpu = (last.condition.cpu_s - first.condition.cpu_s) / (last.at - first.at)
        num_bytes = last.condition.num_bytes - first.condition.num_bytes
        return cpu >= BUSY or num_bytes >= BUSY_BYTES or last.condition.state == "R"
