"""An engine around another one, which strikes its workers and its messages.

Around processes it sends real signals, for what only the driver can see: the rest strikes inside the workers. Around
the fake engine, whose workers are no processes, it does all of it, at the messages that show where a worker is.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

from paceline._core.clock import Clock
from paceline._engine.base import Engine, Group, Needs
from paceline._engine.messages import (
    Begin,
    CheckpointCommitted,
    FromWorker,
    PreemptionTold,
    Reported,
    ToWorker,
    WorkerReady,
    WorkerReturned,
    WorkersStopped,
)
from paceline.testing.engine import FakeEngine
from paceline.testing.faults import acts
from paceline.testing.faults.fired import Fired
from paceline.testing.faults.moments import DRIVERS_PHASES, Watch
from paceline.testing.faults.values import (
    Capacity,
    Faults,
    Hang,
    Kill,
    OutOfMemory,
    Preempt,
    Timed,
)
from paceline.testing.faults.wire import Wire, rank_of

Moments = Iterator[tuple[str, int]]


class FaultyEngine:
    def __init__(self, inner: Engine, faults: Faults, fired: Fired, clock: Clock, lose: Callable[[], None]) -> None:
        """`lose` ends the driver."""
        self._inner = inner
        self._clock = clock
        self._lose = lose
        self._fake = inner if isinstance(inner, FakeEngine) else None
        timed = {i: f for i, f in enumerate(faults.all) if isinstance(f, Timed)}
        self._watch = Watch({i: f for i, f in timed.items() if self._fake or _is_drivers(f)}, fired)
        self._in = Wire(faults, fired, "in")
        self._out = Wire(faults, fired, "out")
        self._begins: dict[int, Begin] = {}
        self._unseen: set[int] = set()
        """Workers whose process is not known yet."""
        self._mute: set[int] = set()
        self._stopped: list[WorkersStopped] = []
        self._later: deque[Timed] = deque()
        self._ends: list[tuple[float, int, int]] = []
        """When, in which attempt, which of the fake engine's workers is taken away."""
        self._timers: list[threading.Timer] = []
        self._room: int | None = None

    def capacity(self, needs: Needs, least: int, most: int) -> int:
        room = self._inner.capacity(needs, least, most)
        return room if self._room is None else min(room, self._room)

    @property
    def waits(self) -> bool:
        return self._inner.waits

    def start(self, group: Group) -> None:
        self._out.clear()
        self._mute.clear()
        self._begins = {spec.begin.rank: spec.begin for spec in group.workers}
        self._unseen = set(self._begins)
        self._inner.start(group)
        self._see_spawned()

    def send(self, rank: int, message: ToWorker) -> None:
        self._out.put(rank, message, self._clock.now())
        self._pass_on()

    def stop(self, *, kill: bool) -> None:
        self._inner.stop(kill=kill)

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        while self._later:
            self._strike(self._later.popleft())
        for due, attempt, rank in self._ends:
            if self._fake is not None and due <= self._clock.now() and self._begins[rank].attempt == attempt:
                self._fake.kill(rank)
        for message in self._inner.wait(self._patience(timeout_s)):
            if isinstance(message, WorkersStopped):
                self._stopped.append(message)
            elif rank_of(message) not in self._mute and not self._struck_before(message):
                self._in.put(rank_of(message), message, self._clock.now())
                self._pass_all(rank_of(message), self._after(message))
        self._see_spawned()
        self._pass_on()
        heard: list[FromWorker | WorkersStopped] = [message for _, message in self._in.arrived(self._clock.now())]
        if self._in.is_empty:
            heard += self._stopped
            self._stopped = []
        return heard

    def wake(self) -> None:
        self._inner.wake()

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def passed(self, phase: str, number: int | None) -> None:
        """The driver is in a phase that concerns all ranks. From any thread."""
        for fault in self._watch.due(phase, number, None):
            if self._fake is not None:
                # Its workers are generators of the driver's own thread, which strikes them when it next waits.
                self._later.append(fault)
                self._inner.wake()
            else:
                self._strike(fault)

    def _pass_all(self, rank: int, moments: Moments) -> bool:
        """Let one rank pass moments; whether it was struck in one of them."""
        due = [fault for phase, number in moments for fault in self._watch.due(phase, number, rank)]
        for fault in due:
            self._strike(fault)
        return any(fault.rank == rank for fault in due)

    def _see_spawned(self) -> None:
        pid: Any = getattr(self._inner, "pid", None)
        for rank in sorted(self._unseen):
            if self._fake is not None:
                self._unseen.discard(rank)
                self._pass_all(rank, _before_ready(self._begins[rank]))
            elif pid is None or pid(rank):
                self._unseen.discard(rank)
                self._pass_all(rank, iter([("spawn", self._begins[rank].attempt)]))

    def _struck_before(self, message: FromWorker) -> bool:
        """Whether a worker that is no process died before it could say this."""
        moments: list[tuple[str, int]] = []
        if isinstance(message, Reported):
            moments = [("report", message.seq)]
        elif isinstance(message, WorkerReturned):
            moments = [("exit", message.attempt)]
        return self._pass_all(rank_of(message), iter(moments)) and self._fake is not None

    def _after(self, message: FromWorker) -> Moments:
        """Where a worker is once it has said this."""
        if isinstance(message, WorkerReady) and message.rank in self._begins:
            yield "step", self._begins[message.rank].first_seq + 1
            yield "data", 1
            yield "collective", 1
        if isinstance(message, Reported):
            if message.checkpoint is None:
                yield "step", message.seq + 1
            else:
                yield "snapshot", message.seq
                yield "upload", message.seq

    def _pass_on(self) -> None:
        for rank, message in self._out.arrived(self._clock.now()):
            self._inner.send(rank, message)
            if isinstance(message, CheckpointCommitted):
                self._pass_all(rank, iter([("step", message.record.seq + 1)]))

    def _patience(self, timeout_s: float | None) -> float | None:
        now = self._clock.now()
        waits = [timeout_s, self._in.patience(now), self._out.patience(now)]
        return min((wait for wait in waits if wait is not None), default=None)

    def _strike(self, fault: Timed) -> None:
        if fault.at.delay_s and self._fake is None:
            timer = threading.Timer(fault.at.delay_s, self._strike_now, (fault,))
            timer.daemon = True
            timer.start()
            self._timers.append(timer)
        else:
            self._strike_now(fault)

    def _strike_now(self, fault: Timed) -> None:
        match fault:
            case Capacity(to=to):
                self._room = to
            case _ if self._fake is not None:
                self._strike_fake(self._fake, fault)
            case Preempt(rank=None, deadline_s=deadline_s):
                self._timers.append(acts.preempted(deadline_s))
            case Kill(rank=rank) | OutOfMemory(rank=rank):
                self._signal(rank, signal.SIGKILL)
            case Hang(rank=rank):
                self._signal(rank, signal.SIGSTOP)
            case Preempt(rank=int() as rank, deadline_s=deadline_s):
                self._signal(rank, signal.SIGTERM)
                timer = threading.Timer(deadline_s, self._signal, (rank, signal.SIGKILL))
                timer.daemon = True
                timer.start()
                self._timers.append(timer)
        if isinstance(fault, Kill) and fault.with_driver:
            self._lose()

    def _strike_fake(self, fake: FakeEngine, fault: Timed) -> None:
        unheard = fault.at.phase in ("report", "exit")
        match fault:
            case Kill(rank=rank):
                fake.kill(rank, unheard=unheard)
            case OutOfMemory(rank=rank):
                fake.kill(rank, "memory", "out of memory: killed by the kernel", unheard=unheard)
            case Hang(rank=rank):
                self._mute.add(rank)
            case Preempt(rank=rank, deadline_s=deadline_s):
                ranks = (rank,) if rank is not None else tuple(self._begins)
                attempt = self._begins[ranks[0]].attempt
                told = PreemptionTold(attempt, deadline_s, ranks, whole=rank is None)
                self._in.put(ranks[0], told, self._clock.now())
                self._ends += [(self._clock.now() + deadline_s, attempt, rank) for rank in ranks]

    def _signal(self, rank: int, number: int) -> None:
        if (signalled := getattr(self._inner, "signal", None)) is not None:
            signalled(rank, number)  # the process is on a machine of its own
            return
        pid = cast(Any, self._inner).pid(rank)
        if pid > 0:  # 0 would be our own process group.
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass  # It has ended by itself a moment before.


def _is_drivers(fault: Timed) -> bool:
    return fault.rank is None or fault.at.phase in DRIVERS_PHASES


def _before_ready(begin: Begin) -> Moments:
    yield "spawn", begin.attempt
    yield "import", begin.attempt
    yield "rendezvous", begin.attempt
    if begin.resume is not None or begin.initial is not None:
        yield "restore", begin.attempt
