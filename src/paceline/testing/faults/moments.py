"""When a fault strikes: the phases of a run, one occurrence of a phase, and which faults have struck.

Wherever a run passes a moment, a `FaultSchedule` receives its phase and number and returns the faults that are due. A
`StrikeLog` outlives a killed process: each strike is one line, written under a lock before the fault acts, so that it
does not strike a restarted attempt or a new driver again.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from paceline._core.arguments import bad_value, check_int, check_number

if TYPE_CHECKING:
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
            raise bad_value("at", f"one of {', '.join(PHASES)}", self.phase)
        check_int("call", self.call, at_least=1)
        check_number("delay_s", self.delay_s, at_least=0)

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
    raise bad_value("at", "a phase, (phase, number), the number of a report or At(...)", moment)


class FaultSchedule:
    """Counts the moments that one process passes, and returns the faults due at each. Thread-safe."""

    def __init__(self, faults: Mapping[int, TimedFault], strike_log: StrikeLog) -> None:
        self._faults = faults
        self._strike_log = strike_log
        self._lock = threading.Lock()  # protects the counts
        self._num_passed = dict.fromkeys(faults, 0)

    def take_due(self, phase: str, number: int | None, rank: int | None) -> list[TimedFault]:
        """Return the faults that strike now: each once, in whichever process and attempt reaches it first.

        `rank` is the one that passes the moment; None is the driver, on behalf of all ranks.
        """
        due = []
        for index, fault in self._faults.items():
            at = fault.at
            is_same_rank = fault.rank is None or rank is None or fault.rank == rank
            if at.phase != phase or at.number not in (None, number) or not is_same_rank:
                continue
            with self._lock:
                self._num_passed[index] += 1
                is_due = self._num_passed[index] >= at.call
            if is_due and self._strike_log.claim(index):
                due.append(fault)
        return due


@dataclass(frozen=True)
class Strike:
    """A fault that struck: its index in `Faults.all`, when, and in which process."""

    fault: int
    at: float
    pid: int


class StrikeLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._exhausted: set[int] = set()

    def claim(self, fault: int, times: int = 1) -> bool:
        """Claim one of the times that a fault may strike; return False once none are left."""
        if fault in self._exhausted:
            return False
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            num_strikes = sum(strike.fault == fault for strike in _parse_strikes(file.read()))
            if num_strikes >= times:
                self._exhausted.add(fault)
                return False
            file.write(json.dumps({"fault": fault, "at": time.time(), "pid": os.getpid()}) + "\n")
        return True

    def is_unused(self, fault: int) -> bool:
        """Whether a fault has not struck yet."""
        return all(strike.fault != fault for strike in self.strikes())

    def strikes(self) -> list[Strike]:
        try:
            return _parse_strikes(self.path.read_text())
        except FileNotFoundError:
            return []


def _parse_strikes(text: str) -> list[Strike]:
    return [Strike(**json.loads(line)) for line in text.splitlines()]
