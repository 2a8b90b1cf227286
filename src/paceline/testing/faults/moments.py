"""When a fault strikes: the phases of a run, and one occurrence of a phase. Pure.

Wherever a run passes a moment, a `FaultSchedule` receives its phase and number and returns the faults that are due.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from paceline.testing.faults.strike_log import StrikeLog
    from paceline.testing.faults.values import TimedFault

Phase = Literal[
    "spawn",
    "import",
    "rendezvous",
    "restore",
    "data",
    "step",
    "collective",
    "report",
    "snapshot",
    "upload",
    "commit",
    "retention",
    "exit",
]

PHASES: tuple[str, ...] = get_args(Phase)
"""In the order in which an attempt reaches them.

spawn       the process exists but has not begun to run
import      it unpickles the function
rendezvous  the framework is being set up: a barrier of the backend, or just before the function is called
restore     the function requests the checkpoint to resume from, and there is one
data        a batch is requested from a torch `DataLoader` or a dataset shard
step        from the return of one report to the next report
collective  a collective of `torch.distributed`, a DDP gradient or `paceline.train.collective` is entered
report      a report is in the worker's own file but not yet sent
snapshot    a state in memory is copied
upload      each operation of a worker on the files of a checkpoint that it stages
commit      each operation of the driver on the files of a checkpoint that it commits
retention   each operation of the driver on the files of a checkpoint that it deletes
exit        the function has returned, but the driver does not know yet
"""

DRIVER_PHASES = frozenset({"spawn", "commit", "retention"})
"""Phases of a worker that only the driver can see."""


@dataclass(frozen=True)
class At:
    """One occurrence of a moment: `At("upload", 3)` is the first operation on the files of report 3.

    `number` is that of the report in `step`, `report`, `snapshot`, `upload`, `commit` and `retention`, of the batch or
    the collective in `data` and `collective`, and of the attempt in the others. None means whichever comes first.
    `call` selects one of several occurrences in a phase. `delay_s` is the delay after it.
    """

    phase: Phase
    number: int | None = None
    call: int = 1
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"at={self.phase!r} is no phase of a run: use one of {', '.join(PHASES)}")
        if self.call < 1:
            raise ValueError(f"call={self.call!r} is not a number from 1 on")
        if self.delay_s < 0:
            raise ValueError(f"delay_s={self.delay_s!r} is below 0")

    def __str__(self) -> str:
        number = f" {self.number}" if self.number is not None else ""
        call = f", call {self.call}" if self.call > 1 else ""
        return f"{self.phase}{number}{call}" + (f" + {self.delay_s:g} s" if self.delay_s else "")


Moment = At | Phase | int | tuple[Phase, int]
"""How to specify a moment: `"upload"`, `("upload", 3)`, `At("upload", 3, call=2)`; an int is the number of a report."""


def to_at(moment: Moment) -> At:
    match moment:
        case At():
            return moment
        case bool():
            pass
        case int():
            return At("report", moment)
        case str():
            return At(moment)
        case (str() as phase, int() as number):
            return At(phase, number)
    raise ValueError(f"at={moment!r} is no moment: use a phase, (phase, number), the number of a report, or At(...)")


class FaultSchedule:
    """Counts the moments that one process passes, and returns the faults due at each. Thread-safe."""

    def __init__(self, faults: Mapping[int, TimedFault], fired: StrikeLog) -> None:
        self._faults = faults
        self._strike_log = fired
        self._lock = threading.Lock()  # protects the counts
        self._num_passed = dict.fromkeys(faults, 0)

    def take_due(self, phase: str, number: int | None, rank: int | None) -> list[TimedFault]:
        """Return the faults that strike now: each once, in whichever process and attempt reaches it first.

        `rank` is the one that passes the moment; None is the driver, on behalf of all ranks.
        """
        due = []
        for index, fault in self._faults.items():
            at = fault.at
            if at.phase != phase or at.number not in (None, number) or not _matches_rank(fault.rank, rank):
                continue
            with self._lock:
                self._num_passed[index] += 1
                ripe = self._num_passed[index] >= at.call
            if ripe and self._strike_log.claim(index):
                due.append(fault)
        return due


def _matches_rank(wanted: int | None, rank: int | None) -> bool:
    return wanted is None or rank is None or wanted == rank
