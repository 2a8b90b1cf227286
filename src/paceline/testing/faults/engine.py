"""An engine wrapper that strikes workers and messages, which may be lost, late, duplicated or out of order.

Around processes it sends real signals, for phases that only the driver can see; the other faults strike inside the
workers. Around the fake engine it applies all faults, at the messages that show where a worker is.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, cast

from paceline._core.system import Clock
from paceline._engine import messages
from paceline._engine.base import Engine, WorkerGroupSpec, WorkerResources
from paceline._engine.messages import FromWorker, ToWorker, WorkerInit, WorkersStopped
from paceline.testing.engine import FakeEngine
from paceline.testing.faults import values
from paceline.testing.faults.moments import DRIVER_PHASES, FaultSchedule, StrikeLog
from paceline.testing.faults.values import Faults, MessageFault, TimedFault, select_faults
from paceline.testing.faults.worker import preempt_this_process, start_timer

MomentIterator = Iterator[tuple[str, int]]


class FaultyEngine:
    def __init__(
        self, inner: Engine, faults: Faults, strike_log: StrikeLog, clock: Clock, lose: Callable[[], None]
    ) -> None:
        """`lose` ends the driver."""
        self._inner = inner
        self._clock = clock
        self._lose_driver = lose
        self._fake = inner if isinstance(inner, FakeEngine) else None
        timed: dict[int, TimedFault] = select_faults(faults, TimedFault)
        mine = {i: f for i, f in timed.items() if self._fake or f.rank is None or f.at.phase in DRIVER_PHASES}
        self._schedule = FaultSchedule(mine, strike_log)
        self._inbound = FaultyWire(faults, strike_log, "in")
        self._outbound = FaultyWire(faults, strike_log, "out")
        self._begins: dict[int, WorkerInit] = {}
        self._unseen_ranks: set[int] = set()
        """Workers whose process is not known yet."""
        self._muted_ranks: set[int] = set()
        self._stopped: list[WorkersStopped] = []
        self._deferred_faults: deque[TimedFault] = deque()
        self._pending_kills: list[tuple[float, int, int]] = []
        """Pending kills of the fake engine's workers: when, in which attempt, which rank."""
        self._timers: list[threading.Timer] = []
        self._capacity_limit: int | None = None

    def capacity(self, needs: WorkerResources, least: int, most: int) -> int:
        capacity = self._inner.capacity(needs, least, most)
        return capacity if self._capacity_limit is None else min(capacity, self._capacity_limit)

    def start(self, group: WorkerGroupSpec) -> None:
        self._outbound.clear()
        self._muted_ranks.clear()
        self._begins = {spec.begin.rank: spec.begin for spec in group.workers}
        self._unseen_ranks = set(self._begins)
        self._inner.start(group)
        self._check_spawned()

    def send(self, rank: int, message: ToWorker) -> None:
        self._outbound.put(rank, message, self._clock.now())
        self._deliver()

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        while self._deferred_faults:
            self._strike(self._deferred_faults.popleft())
        for due, attempt, rank in self._pending_kills:
            if self._fake is not None and due <= self._clock.now() and self._begins[rank].attempt == attempt:
                self._fake.kill(rank)
        for message in self._inner.wait(self._next_timeout_s(timeout_s)):
            if isinstance(message, WorkersStopped):
                self._stopped.append(message)
            elif find_rank(message) not in self._muted_ranks and not self._is_struck_before(message):
                self._inbound.put(find_rank(message), message, self._clock.now())
                self._pass_moments(find_rank(message), self._moments_after(message))
        self._check_spawned()
        self._deliver()
        received = [message for _, message in self._inbound.take_arrived(self._clock.now())]
        if self._inbound.is_empty:
            received += self._stopped
            self._stopped = []
        return received

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def enter_phase(self, phase: str, number: int | None) -> None:
        """The driver enters a phase that concerns all ranks. Callable from any thread."""
        for fault in self._schedule.take_due(phase, number, None):
            if self._fake is not None:
                # Its workers are generators of the driver's own thread, which strikes them at its next wait.
                self._deferred_faults.append(fault)
                self._inner.wake()
            else:
                self._strike(fault)

    def _pass_moments(self, rank: int, moments: MomentIterator) -> bool:
        """Let one rank pass moments; return whether it was struck in one of them."""
        due = [fault for phase, number in moments for fault in self._schedule.take_due(phase, number, rank)]
        for fault in due:
            self._strike(fault)
        return any(fault.rank == rank for fault in due)

    def _check_spawned(self) -> None:
        pid: Any = getattr(self._inner, "pid", None)
        for rank in sorted(self._unseen_ranks):
            if self._fake is not None or pid is None or pid(rank):
                self._unseen_ranks.discard(rank)
                moments = _moments_before_ready(self._begins[rank])
                self._pass_moments(rank, moments if self._fake is not None else islice(moments, 1))

    def _is_struck_before(self, message: FromWorker) -> bool:
        """Whether a worker of the fake engine died before it could send this."""
        moments: list[tuple[str, int]] = []
        if isinstance(message, messages.Reported):
            moments = [("report", message.seq)]
        elif isinstance(message, messages.WorkerReturned):
            moments = [("exit", message.attempt)]
        return self._pass_moments(find_rank(message), iter(moments)) and self._fake is not None

    def _moments_after(self, message: FromWorker) -> MomentIterator:
        if isinstance(message, messages.WorkerReady) and message.rank in self._begins:
            yield "step", self._begins[message.rank].first_seq + 1
            yield "data", 1
            yield "collective", 1
        if isinstance(message, messages.Reported):
            if message.checkpoint is None:
                yield "step", message.seq + 1
            else:
                yield "snapshot", message.seq
                yield "upload", message.seq

    def _deliver(self) -> None:
        for rank, message in self._outbound.take_arrived(self._clock.now()):
            self._inner.send(rank, message)
            if isinstance(message, messages.CheckpointCommitted):
                self._pass_moments(rank, iter([("step", message.record.seq + 1)]))

    def _next_timeout_s(self, timeout_s: float | None) -> float | None:
        now = self._clock.now()
        waits = [timeout_s, self._inbound.next_arrival_s(now), self._outbound.next_arrival_s(now)]
        return min((wait for wait in waits if wait is not None), default=None)

    def _strike(self, fault: TimedFault) -> None:
        if fault.at.delay_s and self._fake is None:
            self._timers.append(start_timer(fault.at.delay_s, lambda: self._strike_now(fault)))
        else:
            self._strike_now(fault)

    def _strike_now(self, fault: TimedFault) -> None:
        match fault:
            case values.CapacityFault(to=to):
                self._capacity_limit = to
            case _ if self._fake is not None:
                self._strike_fake(self._fake, fault)
            case values.PreemptFault(rank=None, deadline_s=deadline_s):
                self._timers.append(preempt_this_process(deadline_s))
            case values.KillFault(rank=rank) | values.OutOfMemoryFault(rank=rank):
                self._signal(rank, signal.SIGKILL)
            case values.HangFault(rank=rank):
                self._signal(rank, signal.SIGSTOP)
            case values.PreemptFault(rank=int() as rank, deadline_s=deadline_s):
                self._signal(rank, signal.SIGTERM)
                self._timers.append(start_timer(deadline_s, lambda: self._signal(rank, signal.SIGKILL)))
        if isinstance(fault, values.KillFault) and fault.with_driver:
            self._lose_driver()

    def _strike_fake(self, fake: FakeEngine, fault: TimedFault) -> None:
        unheard = fault.at.phase in ("report", "exit")
        match fault:
            case values.KillFault(rank=rank):
                fake.kill(rank, unheard=unheard)
            case values.OutOfMemoryFault(rank=rank):
                fake.kill(rank, "memory", "out of memory: killed by the kernel", unheard=unheard)
            case values.HangFault(rank=rank):
                self._muted_ranks.add(rank)
            case values.PreemptFault(rank=rank, deadline_s=deadline_s):
                ranks = (rank,) if rank is not None else tuple(self._begins)
                attempt = self._begins[ranks[0]].attempt
                notice = messages.PreemptionNoticeReceived(attempt, deadline_s, ranks, includes_driver=rank is None)
                self._inbound.put(ranks[0], notice, self._clock.now())
                self._pending_kills += [(self._clock.now() + deadline_s, attempt, rank) for rank in ranks]

    def _signal(self, rank: int, number: int) -> None:
        if (signalled := getattr(self._inner, "signal", None)) is not None:
            signalled(rank, number)  # the process may be on another machine
            return
        pid = cast(Any, self._inner).pid(rank)
        if pid > 0:  # 0 would be our own process group.
            with contextlib.suppress(ProcessLookupError):  # It ended by itself a moment before.
                os.kill(pid, number)


def _moments_before_ready(begin: WorkerInit) -> MomentIterator:
    yield "spawn", begin.attempt
    yield "import", begin.attempt
    yield "rendezvous", begin.attempt
    if begin.resume is not None or begin.initial is not None:
        yield "restore", begin.attempt


_MAX_ROUNDS_LATE = 3
"""How many rounds of the driver's loop reordering may delay a message."""


class FaultyWire:
    """Messages in one direction. Each worker keeps its own order, as on a socket: later ones wait behind a late one."""

    def __init__(self, faults: Faults, strike_log: StrikeLog, direction: str) -> None:
        self._faults: dict[int, MessageFault] = select_faults(faults, MessageFault)
        self._strike_log = strike_log
        self._dice = random.Random(f"{faults.seed} {direction}")
        self._queues: dict[int, deque[tuple[float, int, Any]]] = {}
        """By rank: the earliest time, the earliest round, the message."""
        self._round = 0

    @property
    def is_empty(self) -> bool:
        return not any(self._queues.values())

    def clear(self) -> None:
        self._queues.clear()

    def put(self, rank: int, message: Any, now: float) -> None:
        """Take a message from its sender."""
        queue = self._queues.setdefault(rank, deque())
        copies, due, round_ = 1, now, self._round
        for index, fault in self._faults.items():
            is_affected = _is_affected(fault, rank, message)
            if not is_affected or (fault.times is not None and not self._strike_log.claim(index, fault.times)):
                continue
            match fault.how:
                case "drop":
                    copies = 0
                case "duplicate":
                    copies += 1
                case "delay":
                    due += fault.delay_s
                case "reorder":
                    round_ += self._dice.randint(0, _MAX_ROUNDS_LATE)
        queue.extend([(due, round_, message)] * copies)

    def take_arrived(self, now: float) -> Iterator[tuple[int, Any]]:
        """Yield what has arrived by now, rank by rank; reordering shuffles the ranks."""
        self._round += 1
        ranks = list(self._queues)
        if any(fault.how == "reorder" for fault in self._faults.values()):
            self._dice.shuffle(ranks)
        for rank in ranks:
            queue = self._queues[rank]
            while queue and queue[0][0] <= now and queue[0][1] < self._round:
                yield rank, queue.popleft()[2]

    def next_arrival_s(self, now: float) -> float | None:
        """Return the seconds until the next message can arrive; None if none is held."""
        heads = [queue[0] for queue in self._queues.values() if queue]
        return min((max(0.0, due - now) for due, _, _ in heads), default=None)


def find_rank(message: Any) -> int:
    """Return the rank that a message belongs to."""
    match message:
        case messages.CheckpointStaged(staged=staged):
            return staged.rank
        case messages.PreemptionNoticeReceived(ranks=ranks):
            return ranks[0] if ranks else 0
        case messages.UsageReported(usage=use):
            return use.rank
    rank: int = message.rank
    return rank


def _find_number(message: Any) -> int | None:
    holders = (message, getattr(message, "record", None))
    return next((getattr(each, name) for each in holders for name in ("seq", "number") if hasattr(each, name)), None)


def _is_affected(fault: MessageFault, rank: int, message: Any) -> bool:
    kind = type(message).__name__
    return fault.message in ("*", kind) and fault.rank in (None, rank) and fault.number in (None, _find_number(message))
