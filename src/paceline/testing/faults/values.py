"""Faults as values: what goes wrong in a run, in the terms of a run. Nothing happens here.

`Faults.applied_to(trainer)` plants them in the `RunEnvironment` that the run acts through; product code knows nothing
of them.
"""

from __future__ import annotations

import contextlib
import errno as codes
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from paceline._core.arguments import bad_value, check_choice
from paceline._engine.messages import ExitWorker, FromWorker, ToWorker, WorkerInit
from paceline.testing.faults.moments import PHASES, At, Moment, Strike, StrikeLog, to_at

if TYPE_CHECKING:
    from paceline.train.trainer import DataParallelTrainer

    Trainer = TypeVar("Trainer", bound=DataParallelTrainer)


class DriverLost(BaseException):
    """The driver of a run on the fake engine is lost, like a killed process: it does nothing more."""


@dataclass(frozen=True)
class KillFault:
    rank: int
    at: At
    with_driver: bool = False

    def __str__(self) -> str:
        return f"{'driver and ' if self.with_driver else ''}rank {self.rank} killed in {self.at}"


@dataclass(frozen=True)
class HangFault:
    rank: int
    at: At
    how: Literal["asleep", "stopped", "gil"] = "asleep"

    def __str__(self) -> str:
        return f"rank {self.rank} hangs ({self.how}) in {self.at}"


@dataclass(frozen=True)
class PreemptFault:
    rank: int | None
    at: At
    deadline_s: float

    def __str__(self) -> str:
        who = "driver" if self.rank is None else f"rank {self.rank}"
        return f"{who} preempted in {self.at}, {self.deadline_s:g} s left"


@dataclass(frozen=True)
class OutOfMemoryFault:
    rank: int
    at: At

    def __str__(self) -> str:
        return f"rank {self.rank} out of memory in {self.at}"


@dataclass(frozen=True)
class CapacityFault:
    """From that moment on, `to` workers fit on the engine."""

    to: int
    at: At
    rank: None = None

    def __str__(self) -> str:
        return f"room for {self.to} workers from {self.at}"


TimedFault = KillFault | HangFault | PreemptFault | OutOfMemoryFault | CapacityFault


@dataclass(frozen=True)
class LoseDriverFault:
    event: str | None
    """The type of event in the journal; None means any."""
    number: int

    def __str__(self) -> str:
        return f"driver killed after {self.event or 'journal line'} {self.number}"


@dataclass(frozen=True)
class WriteFault:
    path: str
    act: str | None
    """The one file operation affected, such as `rename`; None means all that write data."""
    times: int | None
    error: int | None = None
    at_byte: int | None = None
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    stall_s: float | None = None

    def __str__(self) -> str:
        what = f"{self.act or 'write'} of {self.path}"
        if self.error is not None:
            byte = f" at byte {self.at_byte}" if self.at_byte is not None else ""
            return f"{what} fails with {codes.errorcode[self.error]}{byte}"
        return f"{what} stalls" if self.stall_s is not None else f"{what} is slow"


@dataclass(frozen=True)
class CorruptFault:
    file: str
    how: Literal["flip", "truncate", "zero"]
    after: int | None
    """The report of the checkpoint; None means the first checkpoint."""

    def __str__(self) -> str:
        which = f"checkpoint {self.after}" if self.after is not None else "the first checkpoint"
        return f"{self.file} of {which}: {self.how}"


@dataclass(frozen=True)
class MessageFault:
    how: Literal["drop", "delay", "duplicate", "reorder"]
    message: str
    """The name of its class, or `*`."""
    rank: int | None
    number: int | None
    times: int | None
    delay_s: float = 0.0

    def __str__(self) -> str:
        who = f" of rank {self.rank}" if self.rank is not None else ""
        number = f" {self.number}" if self.number is not None else ""
        return f"{self.how} {self.message}{number}{who}"


Fault = TimedFault | LoseDriverFault | WriteFault | CorruptFault | MessageFault

MESSAGES = (
    *(kind.__name__ for kind in get_args(FromWorker) + get_args(ToWorker) if kind not in (WorkerInit, ExitWorker)),
    "*",
)
"""Messages that can be lost, delayed, duplicated or reordered: all but those that start and end a worker."""


@dataclass(frozen=True)
class Faults:
    """The faults of a run, as an immutable value: each method returns a copy with one more fault.

        faults = Faults(seed=7).kill(1, at=("upload", 3)).lose_driver(after="Committed")
        faults.applied_to(trainer).fit()

    Each fault strikes once, even across restarts and lost drivers: strikes are recorded in `faults.jsonl` in the run's
    directory, or in `remember_in`. `fired` returns them, so that a test can check that its faults struck.
    """

    seed: int = 0
    remember_in: Path | None = None
    all: tuple[Fault, ...] = ()

    def kill(self, rank: int, at: Moment = "step") -> Faults:
        """Send SIGKILL to the worker of a rank."""
        return self._with_fault(KillFault(rank, to_at(at)))

    def hang(self, rank: int, at: Moment = "step", how: Literal["asleep", "stopped", "gil"] = "asleep") -> Faults:
        """Make a worker hang: asleep in its function, stopped by SIGSTOP, or asleep in C code that holds the GIL."""
        check_choice("how", how, ("asleep", "stopped", "gil"))
        return self._with_fault(HangFault(rank, to_at(at), how))

    def preempt(self, rank: int | None, deadline_s: float, at: Moment = "step") -> Faults:
        """Send SIGTERM to the worker of a rank, or to the driver (None), and SIGKILL `deadline_s` later."""
        return self._with_fault(PreemptFault(rank, to_at(at), deadline_s))

    def oom(self, rank: int, at: Moment = "step") -> Faults:
        """Make a worker run out of memory.

        If its control group has less than 1 GiB left, it really allocates until the kernel kills it. Elsewhere that
        could take other processes down, so it sends itself the same SIGKILL, without the kernel's evidence.
        """
        return self._with_fault(OutOfMemoryFault(rank, to_at(at)))

    def lose_driver(self, after: str | int, number: int = 1) -> Faults:
        """Send SIGKILL to the driver once the journal has that many lines, or the `number`-th event of that type.

        The process that called `fit()` is gone: run the script again to continue.
        """
        if isinstance(after, int):
            return self._with_fault(LoseDriverFault(None, after))
        return self._with_fault(LoseDriverFault(after, number))

    def lose_all(self, rank: int, at: Moment = "step") -> Faults:
        """Send SIGKILL to the driver and to the worker of a rank at once, as when a machine goes down."""
        return self._with_fault(KillFault(rank, to_at(at), with_driver=True))

    def fail_write(
        self,
        path: str = "*",
        *,
        error: int = codes.ENOSPC,
        at_byte: int | None = None,
        times: int | None = 1,
        act: str | None = None,
    ) -> Faults:
        """Fail a write with a disk error, at once or after `at_byte` bytes.

        `path` is a pattern below the run's directory, such as `*state.bin`. `act` names one file operation (`rename`,
        `make_dir`, `sync_dir`, ...); None means all that write data. `times=None` means forever.
        """
        if error not in codes.errorcode:
            raise bad_value("error", "a number of `errno`, such as errno.EIO", error)
        return self._with_fault(WriteFault(path, act, times, error=error, at_byte=at_byte))

    def slow_write(
        self,
        path: str = "*",
        *,
        delay_s: float = 0.0,
        bytes_per_s: float | None = None,
        times: int | None = None,
        act: str | None = None,
    ) -> Faults:
        """Slow writes down: each takes `delay_s` longer, plus the time its bytes need at `bytes_per_s`."""
        if not delay_s and bytes_per_s is None:
            raise ValueError("slow_write needs delay_s or bytes_per_s")
        return self._with_fault(WriteFault(path, act, times, delay_s=delay_s, bytes_per_s=bytes_per_s))

    def stall_write(
        self, path: str = "*", *, for_s: float = float("inf"), times: int | None = 1, act: str | None = None
    ) -> Faults:
        """Make a write hang, forever or for `for_s` seconds."""
        return self._with_fault(WriteFault(path, act, times, stall_s=for_s))

    def corrupt(
        self, file: str = "*", how: Literal["flip", "truncate", "zero"] = "flip", after: int | None = None
    ) -> Faults:
        """Alter the files of a checkpoint after its commit: flip a bit, drop the second half, or drop all bytes.

        `file` is a pattern below the checkpoint; `after` is the number of its report, None means the first.
        """
        check_choice("how", how, ("flip", "truncate", "zero"))
        return self._with_fault(CorruptFault(file, how, after))

    def drop(self, message: str, *, rank: int | None = None, number: int | None = None, times: int = 1) -> Faults:
        """Lose a message between driver and worker, in either direction. `number` is that of its report or barrier."""
        return self._with_fault(MessageFault("drop", message, rank, number, times))

    def delay(
        self,
        message: str,
        *,
        delay_s: float,
        rank: int | None = None,
        number: int | None = None,
        times: int | None = None,
    ) -> Faults:
        """Delay a message, and with it all later messages to or from the same worker."""
        return self._with_fault(MessageFault("delay", message, rank, number, times, delay_s))

    def duplicate(
        self, message: str = "*", *, rank: int | None = None, number: int | None = None, times: int | None = None
    ) -> Faults:
        """Deliver a message twice."""
        return self._with_fault(MessageFault("duplicate", message, rank, number, times))

    def reorder(self, message: str = "*", *, rank: int | None = None, times: int | None = None) -> Faults:
        """Deliver messages in a different order across ranks, drawn from the seed; each rank keeps its own order."""
        return self._with_fault(MessageFault("reorder", message, rank, None, times))

    def lose_capacity(self, to: int, at: Moment = "step") -> Faults:
        """From that moment on, only `to` workers fit on the engine."""
        return self._with_fault(CapacityFault(to, to_at(at)))

    def regain_capacity(self, to: int, at: Moment = "step") -> Faults:
        """From that moment on, `to` workers fit on the engine again."""
        return self.lose_capacity(to, at)

    def kills(
        self, num: int, *, ranks: Sequence[int] = (0, 1), phases: Sequence[str] = PHASES, num_reports: int = 10
    ) -> Faults:
        """Kill ranks at moments drawn from the seed, for a sweep: phase, report, call and delay are random."""
        dice = random.Random(f"{self.seed} {len(self.all)}")
        faults = self
        for _ in range(num):
            phase = dice.choice(phases)
            assert phase in PHASES, phase
            by_report = phase in ("step", "report", "snapshot", "upload", "commit", "data", "collective")
            number = dice.randint(1, num_reports) if by_report else None
            call = dice.randint(1, 4) if phase in ("upload", "commit") else 1
            delay_s = dice.choice((0.0, 0.0, dice.random() * 0.01))
            faults = faults.kill(dice.choice(ranks), At(phase, number, call, delay_s))  # type: ignore[arg-type]
        return faults

    def applied_to(self, trainer: Trainer) -> Trainer:
        """Return a copy of the trainer whose run meets these faults."""
        from paceline.testing.faults.plant import plant_faults

        return plant_faults(self, trainer)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Apply these faults to every trainer fitted inside the block: for a whole script, under `runpy`."""
        from paceline.train.trainer import intercept_fits

        with intercept_fits(lambda trainer, fit: fit(self.applied_to(trainer))):
            yield

    def memory(self, run_path: str | Path) -> StrikeLog:
        """Return the log of the faults that have struck in a run."""
        return StrikeLog((self.remember_in if self.remember_in is not None else Path(run_path)) / "faults.jsonl")

    def fired(self, run_path: str | Path) -> list[tuple[Fault, Strike]]:
        """Return the faults that have struck in the run of that directory, in order."""
        return [(self.all[strike.fault], strike) for strike in self.memory(run_path).strikes()]

    def unfired(self, run_path: str | Path) -> list[Fault]:
        """Return the faults that the run never met."""
        struck = {strike.fault for strike in self.memory(run_path).strikes()}
        return [fault for index, fault in enumerate(self.all) if index not in struck]

    def __str__(self) -> str:
        return "; ".join(map(str, self.all)) or "no fault"

    def _with_fault(self, fault: Fault) -> Faults:
        if isinstance(fault, MessageFault):
            check_choice("message", fault.message, MESSAGES)
        return replace(self, all=(*self.all, fault))


def select_faults(faults: Faults, kind: type[Any] | UnionType) -> dict[int, Any]:
    """Return the faults of a kind, by their index."""
    return {index: fault for index, fault in enumerate(faults.all) if isinstance(fault, kind)}
