"""What the ranks use, asked of them now and then: values and dates, no threads.

How often depends on how many there are: the journal gets about as many bytes a minute from a thousand as from forty.
It also gets rarer as an attempt gets older, since whoever looks at a day does not look at seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline._control.events import Measured, StageUse
from paceline._control.run import Run, Running
from paceline._engine.messages import RankUse, Used

EVERY_S = 2.0
AT_LAST_EVERY_S = 10.0
_AGE_PER_EVERY = 300.0
"""An attempt that is so many times as old is asked half as often."""
PER_RANK_S = 0.05
PATIENCE_S = 1.0
"""How long the slowest rank is waited for; what it answers later is told with the next."""

Stages = Callable[[], tuple[tuple[StageUse, ...], bool]]
"""How the datasets go now, and whether their consumers wait. It neither waits nor raises."""


def interval_s(size: int, age_s: float) -> float:
    """How long after the last time the ranks are asked again."""
    return max(EVERY_S, min(AT_LAST_EVERY_S, age_s / _AGE_PER_EVERY), PER_RANK_S * size)


class Vitals:
    def __init__(self, stages: Stages | None = None) -> None:
        self._stages = stages
        self._began_at = 0.0
        self._asked_at = float("-inf")
        self._uses: dict[int, RankUse] = {}
        self._heard_at = 0.0
        """The first of these."""

    def began(self, now: float) -> None:
        """Workers are being started: they have better things to do than to answer at once."""
        self._began_at = self._asked_at = now
        self._uses = {}

    def is_due(self, run: Run, now: float) -> bool:
        """Whether the ranks are to be asked now. They are taken to be."""
        if not isinstance(run.phase, Running) or now - self._asked_at < interval_s(run.size, now - self._began_at):
            return False
        self._asked_at = now
        return True

    def heard(self, said: Used, run: Run, now: float) -> None:
        if said.attempt == run.attempt:
            if not self._uses:
                self._heard_at = now
            self._uses[said.use.rank] = said.use

    def is_told(self, run: Run, now: float) -> bool:
        """Whether what was answered is to be written down now: by all, or by those who did in time."""
        return len(self._uses) >= run.size or (bool(self._uses) and now - self._heard_at >= PATIENCE_S)

    def taken(self, run: Run, wall: float) -> Measured | None:
        """What was answered since this was last called; None where nobody did."""
        if not self._uses:
            return None
        ranks = tuple(self._uses[rank] for rank in sorted(self._uses))
        self._uses = {}
        stages, wait = self._stages() if self._stages is not None else ((), False)
        return Measured(run.attempt, wall, ranks, stages, wait)
