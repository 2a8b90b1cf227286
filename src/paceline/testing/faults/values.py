"""Faults as values: what is to go wrong in a run, in words of a run. Nothing happens here.

`Faults.applied_to(trainer)` plants them in the seams that the run acts through; product code knows nothing of them.
"""

from __future__ import annotations

import contextlib
import errno as codes
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from paceline._engine.messages import Begin, Exit, FromWorker, ToWorker
from paceline.testing.faults.fired import Fired, Strike
from paceline.testing.faults.moments import PHASES, At, Moment, as_at

if TYPE_CHECKING:
    from paceline.train.trainer import DataParallelTrainer

    Trainer = TypeVar("Trainer", bound=DataParallelTrainer)


class DriverLost(BaseException):
    """The driver of a run on the fake engine is gone, as a process would be: it does nothing more."""


@dataclass(frozen=True)
class Kill:
    rank: int
    at: At
    with_driver: bool = False

    def __str__(self) -> str:
        return f"{'driver and ' if self.with_driver else ''}rank {self.rank} killed in {self.at}"


@dataclass(frozen=True)
class Hang:
    rank: int
    at: At
    how: Literal["asleep", "stopped", "gil"] = "asleep"

    def __str__(self) -> str:
        return f"rank {self.rank} hangs ({self.how}) in {self.at}"


@dataclass(frozen=True)
class Preempt:
    rank: int | None
    at: At
    deadline_s: float

    def __str__(self) -> str:
        who = "driver" if self.rank is None else f"rank {self.rank}"
        return f"{who} preempted in {self.at}, {self.deadline_s:g} s left"


@dataclass(frozen=True)
class OutOfMemory:
    rank: int
    at: At

    def __str__(self) -> str:
        return f"rank {self.rank} out of memory in {self.at}"


@dataclass(frozen=True)
class Capacity:
    """From that moment on, the engine has room for `to` workers."""

    to: int
    at: At
    rank: None = None

    def __str__(self) -> str:
        return f"room for {self.to} workers from {self.at}"


Timed = Kill | Hang | Preempt | OutOfMemory | Capacity
"""Faults that strike at a moment."""


@dataclass(frozen=True)
class LoseDriver:
    event: str | None
    """The kind of event that was written to the journal; None is any."""
    number: int

    def __str__(self) -> str:
        return f"driver killed after {self.event or 'journal line'} {self.number}"


@dataclass(frozen=True)
class WriteFault:
    path: str
    act: str | None
    """The one act on files that is concerned, such as `rename`; None is all that bring bytes to the disk."""
    times: int | None
    """None is for ever."""
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
class Corrupt:
    file: str
    how: Literal["flip", "truncate", "zero"]
    after: int | None
    """The report whose checkpoint it is; None is the first."""

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


Fault = Timed | LoseDriver | WriteFault | Corrupt | MessageFault

MESSAGES = (*(kind.__name__ for kind in get_args(FromWorker) + get_args(ToWorker) if kind not in (Begin, Exit)), "*")
"""What can be lost, late, doubled or reordered: all but what an engine itself says to begin and to end a worker."""


@dataclass(frozen=True)
class Faults:
    """What is to go wrong, as a value: each method gives a new one with a fault more.

        faults = Faults(seed=7).kill(1, at=("upload", 3)).lose_driver(after="Committed")
        faults.applied_to(trainer).fit()

    Each fault strikes once, also across restarts and lost drivers: what has struck is written to `faults.jsonl` in the
    run's directory, or in `remember_in`. `fired` tells, so that a test can see that its faults were met.
    """

    seed: int = 0
    remember_in: Path | None = None
    all: tuple[Fault, ...] = ()

    def kill(self, rank: int, at: Moment = "step") -> Faults:
        """SIGKILL to the worker of a rank."""
        return self._with(Kill(rank, as_at(at)))

    def hang(self, rank: int, at: Moment = "step", how: Literal["asleep", "stopped", "gil"] = "asleep") -> Faults:
        """The worker does nothing any more: asleep in its function, stopped by SIGSTOP, or asleep in C code that holds
        the interpreter's lock, so that no thread of it can answer."""
        _one_of("how", how, ("asleep", "stopped", "gil"))
        return self._with(Hang(rank, as_at(at), how))

    def preempt(self, rank: int | None, deadline_s: float, at: Moment = "step") -> Faults:
        """SIGTERM to the worker of a rank, or to the driver (None), and SIGKILL `deadline_s` later."""
        return self._with(Preempt(rank, as_at(at), deadline_s))

    def oom(self, rank: int, at: Moment = "step") -> Faults:
        """The worker runs out of memory.

        Really, where its control group has less than 1 GiB left: it allocates until the kernel kills it. Elsewhere
        that could take others down, and it sends itself the same SIGKILL; the evidence of the kernel is then missing.
        """
        return self._with(OutOfMemory(rank, as_at(at)))

    def lose_driver(self, after: str | int, number: int = 1) -> Faults:
        """SIGKILL to the driver once the journal has that many lines, or the `number`-th event of that kind.

        The process that called `fit()` is gone: run the script again to continue.
        """
        if isinstance(after, int):
            return self._with(LoseDriver(None, after))
        return self._with(LoseDriver(after, number))

    def lose_all(self, rank: int, at: Moment = "step") -> Faults:
        """SIGKILL to the driver and to the worker of a rank at once, as when a machine goes down."""
        return self._with(Kill(rank, as_at(at), with_driver=True))

    def fail_write(
        self,
        path: str = "*",
        *,
        error: int = codes.ENOSPC,
        at_byte: int | None = None,
        times: int | None = 1,
        act: str | None = None,
    ) -> Faults:
        """An error of the disk in place of a write, or after `at_byte` bytes of it.

        `path` is a pattern below the run's directory, such as `*state.bin`. `act` is one act on files by name
        (`rename`, `make_dir`, `sync_dir`, ...); None is all that bring bytes to the disk. `times=None` is for ever.
        """
        if error not in codes.errorcode:
            raise ValueError(f"error={error!r} is no error number: use one of `errno`, such as errno.EIO")
        return self._with(WriteFault(path, act, times, error=error, at_byte=at_byte))

    def slow_write(
        self,
        path: str = "*",
        *,
        delay_s: float = 0.0,
        bytes_per_s: float | None = None,
        times: int | None = None,
        act: str | None = None,
    ) -> Faults:
        """Writes that take longer: each by `delay_s`, and as long as its bytes take at `bytes_per_s`."""
        if not delay_s and bytes_per_s is None:
            raise ValueError("slow_write: give delay_s or bytes_per_s")
        return self._with(WriteFault(path, act, times, delay_s=delay_s, bytes_per_s=bytes_per_s))

    def stall_write(
        self, path: str = "*", *, for_s: float = float("inf"), times: int | None = 1, act: str | None = None
    ) -> Faults:
        """A write that does not return, or not for `for_s` seconds."""
        return self._with(WriteFault(path, act, times, stall_s=for_s))

    def corrupt(
        self, file: str = "*", how: Literal["flip", "truncate", "zero"] = "flip", after: int | None = None
    ) -> Faults:
        """Alter the files of a checkpoint once it is committed: a bit flipped, the second half gone, or no byte left.

        `file` is a pattern below the checkpoint; `after` is the number of its report, None the first.
        """
        _one_of("how", how, ("flip", "truncate", "zero"))
        return self._with(Corrupt(file, how, after))

    def drop(self, message: str, *, rank: int | None = None, number: int | None = None, times: int = 1) -> Faults:
        """Lose a message between driver and worker, either way. `number` is that of its report or barrier."""
        return self._message(MessageFault("drop", message, rank, number, times))

    def delay(
        self,
        message: str,
        *,
        delay_s: float,
        rank: int | None = None,
        number: int | None = None,
        times: int | None = None,
    ) -> Faults:
        """Hold a message back, and with it all that the same worker says or is told after it."""
        return self._message(MessageFault("delay", message, rank, number, times, delay_s))

    def duplicate(
        self, message: str = "*", *, rank: int | None = None, number: int | None = None, times: int | None = None
    ) -> Faults:
        """Let a message arrive twice."""
        return self._message(MessageFault("duplicate", message, rank, number, times))

    def reorder(self, message: str = "*", *, rank: int | None = None, times: int | None = None) -> Faults:
        """Let messages arrive in another order across ranks, drawn from the seed; each rank keeps its own order."""
        return self._message(MessageFault("reorder", message, rank, None, times))

    def lose_capacity(self, to: int, at: Moment = "step") -> Faults:
        """From that moment on the engine has room for `to` workers only."""
        return self._with(Capacity(to, as_at(at)))

    def regain_capacity(self, to: int, at: Moment = "step") -> Faults:
        """From that moment on the engine has room for `to` workers again."""
        return self._with(Capacity(to, as_at(at)))

    def kills(
        self, num: int, *, ranks: Sequence[int] = (0, 1), phases: Sequence[str] = PHASES, num_reports: int = 10
    ) -> Faults:
        """Kills of ranks at moments drawn from the seed, for a sweep: phase, report, call and delay are random."""
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
        """The same trainer, whose run meets these faults."""
        from paceline.testing.faults.plant import planted

        return planted(self, trainer)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Every trainer that is fitted meanwhile meets these faults: for a whole script, under `runpy`."""
        from paceline.train.trainer import DataParallelTrainer, fitted_by

        fit = DataParallelTrainer.fit
        with fitted_by(lambda trainer: fit(self.applied_to(trainer))):
            yield

    def memory(self, run_path: str | Path) -> Fired:
        """Where it is written what has struck in a run."""
        return Fired((self.remember_in if self.remember_in is not None else Path(run_path)) / "faults.jsonl")

    def fired(self, run_path: str | Path) -> list[tuple[Fault, Strike]]:
        """What has struck in the run of that directory, in order."""
        return [(self.all[strike.fault], strike) for strike in self.memory(run_path).strikes()]

    def unfired(self, run_path: str | Path) -> list[Fault]:
        """What the run never met."""
        struck = {strike.fault for strike in self.memory(run_path).strikes()}
        return [fault for index, fault in enumerate(self.all) if index not in struck]

    def __str__(self) -> str:
        return "; ".join(map(str, self.all)) or "no fault"

    def _with(self, fault: Fault) -> Faults:
        return replace(self, all=(*self.all, fault))

    def _message(self, fault: MessageFault) -> Faults:
        _one_of("message", fault.message, MESSAGES)
        return self._with(fault)


def _one_of(argument: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{argument}={value!r} is none of {', '.join(allowed)}")
