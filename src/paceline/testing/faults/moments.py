"""When a fault strikes: the phases of a run, and one passing of one of them. Pure.

Wherever a run passes a moment, a `Watch` is told its phase and number, and answers with the faults that are due.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from paceline.testing.faults.fired import Fired
    from paceline.testing.faults.values import Timed

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
"""In the order in which an attempt comes to them.

spawn       the process exists and has not begun
import      it unpickles the function
rendezvous  the framework is being set up: a barrier of the backend, or just before the function is called
restore     the function asks for the checkpoint to begin from, and there is one
data        a batch is asked of a torch `DataLoader` or of a part of a dataset
step        from one report's return to the next
collective  a collective of `torch.distributed`, a gradient of DDP or `paceline.train.collective` is entered
report      a report's line is in the worker's own file and not yet sent
snapshot    a state in memory is copied
upload      each act on the files of a checkpoint that a worker stages
commit      each act of the driver on the files of a checkpoint that comes to exist
retention   each act of the driver on the files of a checkpoint that goes
exit        the function has returned, and the driver has not heard of it
"""

DRIVERS_PHASES = frozenset({"spawn", "commit", "retention"})
"""Phases of a worker that only the driver can see."""


@dataclass(frozen=True)
class At:
    """One passing of a moment: `At("upload", 3)` is the first act on the files of report 3.

    `number` is that of the report in `step`, `report`, `snapshot`, `upload`, `commit` and `retention`, of the batch or
    the collective in `data` and `collective`, and of the attempt in the others. None is whichever comes first.
    `call` counts the passings, where a phase has many. `delay_s` is how long after it.
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
"""How a moment may be given: `"upload"`, `("upload", 3)`, `At("upload", 3, call=2)`; a number is that of a report."""


def as_at(moment: Moment) -> At:
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


class Watch:
    """Counts the moments that one process passes, and says which faults are due at each. Any thread may ask."""

    def __init__(self, faults: Mapping[int, Timed], fired: Fired) -> None:
        self._faults = faults
        self._fired = fired
        self._lock = threading.Lock()  # protects the counts
        self._passed = dict.fromkeys(faults, 0)

    def due(self, phase: str, number: int | None, rank: int | None) -> list[Timed]:
        """The faults that strike now: each once, in whichever process and attempt comes to it first.

        `rank` is who passes the moment; None is the driver, on behalf of them all.
        """
        due = []
        for index, fault in self._faults.items():
            at = fault.at
            if at.phase != phase or at.number not in (None, number) or not _meets(fault.rank, rank):
                continue
            with self._lock:
                self._passed[index] += 1
                ripe = self._passed[index] >= at.call
            if ripe and self._fired.claim(index):
                due.append(fault)
        return due


def _meets(wanted: int | None, rank: int | None) -> bool:
    return wanted is None or rank is None or wanted == rank
