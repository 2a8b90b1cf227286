"""What the controller does for one event does not grow with the number of workers: whatever all of them say at once."""

import time
from collections.abc import Callable

import msgspec
import pytest

from paceline._control.events import DriverStarted, Event, StopRequested
from paceline._control.hangs import Watch
from paceline._control.run import Run, Running, Stopping
from paceline._control.step import step
from paceline._core.cursor import Cursor
from paceline._core.reductions import Mark
from paceline._engine.messages import (
    CheckpointStaged,
    Failure,
    FileEntry,
    PreemptionTold,
    Reported,
    Staged,
    WorkerFailed,
    WorkerHeld,
    WorkerReady,
    WorkerReturned,
)
from paceline.train.callbacks import TrainRunContext, UserCallback
from paceline.train.failures import CallbackObserver, Collector

FEW, MANY = 100, 3_000
ALLOWED = 4.0
"""A tree of thirty times as many entries has a level more; what looks at all of them takes thirty times as long."""

RAW = msgspec.Raw(b'{"loss":0.5}')
MARKS = (Mark(("loss",), "mean"),)
FILES = (FileEntry("model.pt", 1, "0"),)


def reported(rank: int, seq: int = 1, **also: object) -> Reported:
    return Reported(1, rank, seq, RAW, 0.0, "train.py:40", **also)  # type: ignore[arg-type]


def cursor(rank: int) -> tuple[tuple[str, Cursor], ...]:
    return (("train", Cursor(row=8, chunk=8, world=2)),)


def echo(rank: int) -> WorkerFailed:
    return WorkerFailed(1, rank, Failure(rank, "user", "closed by peer", at=1.0, collateral=True))


STORMS: dict[str, Callable[[int], list[Event]]] = {
    "are ready": lambda n: [WorkerReady(1, rank, 1) for rank in range(n)],
    "report": lambda n: [reported(rank) for rank in range(n)],
    "report ahead of one": lambda n: [reported(rank, seq) for seq in (1, 2) for rank in range(1, n)],
    "tell where their datasets stand": lambda n: [reported(rank, data=cursor(rank)) for rank in range(n)],
    "tell it ahead of one": lambda n: [reported(r, seq, data=cursor(r)) for seq in (1, 2) for r in range(1, n)],
    "report what is reduced": lambda n: [reported(rank, reduce=MARKS) for rank in range(n)],
    "report it ahead of one": lambda n: [reported(r, seq, reduce=MARKS) for seq in (1, 2) for r in range(1, n)],
    "save what is reduced": lambda n: [
        event
        for rank in range(n)
        for event in (
            reported(rank, checkpoint="checkpoint_000001", reduce=MARKS),
            CheckpointStaged(1, 1, Staged(rank, FILES)),
        )
    ],
    "save": lambda n: [
        event
        for rank in range(n)
        for event in (reported(rank, checkpoint="checkpoint_000001"), CheckpointStaged(1, 1, Staged(rank, FILES)))
    ],
    "lose their connections": lambda n: [echo(rank) for rank in range(n - 1)],
    "lose them to one that died": lambda n: [
        WorkerFailed(1, 0, Failure(0, "killed", "killed by SIGKILL")),
        *(echo(rank) for rank in range(1, n)),
    ],
    "are held": lambda n: [StopRequested(1), *(WorkerHeld(1, rank, rank) for rank in range(n))],
    "are held and return": lambda n: [
        StopRequested(1),
        *(WorkerHeld(1, rank, 1) for rank in range(n - 1)),
        *(WorkerReturned(1, rank, 1, stopped=True) for rank in range(n)),
    ],
    "return": lambda n: [WorkerReturned(1, rank, 1) for rank in range(n)],
    "are to be taken away": lambda n: [PreemptionTold(1, 30.0, (rank,)) for rank in range(n)],
}


def least_s(work: Callable[[], object]) -> float:
    """Processor time of this thread: other processes do not count, and of three tries the quickest does."""
    took = []
    for _ in range(3):
        before = time.thread_time()
        work()
        took.append(time.thread_time() - before)
    return min(took)


def heard(run: Run, events: list[Event]) -> Run:
    for event in events:
        run, _ = step(run, event)
    return run


def opened(size: int) -> Run:
    run, _ = step(Run(), DriverStarted(size, 1))
    assert isinstance(run.phase, Running)
    return run


@pytest.mark.parametrize("what", STORMS)
def test_what_all_workers_say_costs_the_same_for_each(what: str) -> None:
    costs = {}
    for size in (FEW, MANY):
        events = STORMS[what](size)
        run = opened(size)
        assert isinstance(heard(run, events).phase, Running | Stopping)
        costs[size] = least_s(lambda run=run, events=events: heard(run, events)) / len(events)
    assert costs[MANY] < ALLOWED * costs[FEW], f"{1e6 * costs[FEW]:.1f} us, then {1e6 * costs[MANY]:.1f} us"


def test_a_watch_over_ranks_that_report_does_not_look_at_all_of_them_all_the_time() -> None:
    def ticks(size: int) -> float:
        run = opened(size)
        watches = []
        for _ in range(3):
            watch = Watch(None, "warn", "")
            watch.began(size, 1000.0)
            for seq in (1, 2):
                for rank in range(size):
                    watch.saw(reported(rank, seq), 1000.0 + seq)
            assert watch.tick(run, 1002.0, 0.0) is None, "that time it does look"
            watches.append(watch)

        def tick() -> None:
            watch = watches.pop()
            for tenth in range(21, 250):
                assert watch.tick(run, 1000.0 + tenth / 10, 0.0) is None

        return least_s(tick)

    assert ticks(MANY) < ALLOWED * ticks(FEW)


class Watching(UserCallback):
    def __init__(self) -> None:
        self.num_heard = 0

    def after_report(self, run_context: TrainRunContext, metrics: list[object], checkpoint: object) -> None:
        self.num_heard += len(metrics)


def test_a_callback_is_told_of_reports_at_the_same_cost_for_each() -> None:
    def told(size: int) -> float:
        run = opened(size)
        heard_by = Watching()
        about = TrainRunContext("run", None, None, None, None)
        observer = CallbackObserver(heard_by, about, None)  # type: ignore[arg-type]
        events = [reported(rank, seq) for seq in (1, 2) for rank in range(size)]
        took = least_s(lambda: [observer.saw(event, run) for event in events])
        assert heard_by.num_heard == 3 * len(events)
        return took / len(events)

    assert told(MANY) < ALLOWED * told(FEW)


@pytest.mark.parametrize("marks", [(), MARKS], ids=["plain", "reduced"])
def test_reports_are_gathered_at_the_same_cost_for_each(marks: tuple[Mark, ...]) -> None:
    def gathered(size: int) -> float:
        run = opened(size)
        # The last ones first, so that rank 0 completes each report.
        events = [reported(rank, seq, reduce=marks) for seq in (1, 2) for rank in reversed(range(size))]

        def gather() -> None:
            collector = Collector((), run)
            for event in events:
                collector.saw(event, run)
            assert collector.metrics == {"loss": 0.5}

        return least_s(gather) / len(events)

    assert gathered(MANY) < ALLOWED * gathered(FEW)


def test_of_reports_that_all_ranks_have_made_nothing_is_kept() -> None:
    run = heard(opened(FEW), [reported(rank, seq, reduce=MARKS) for seq in (1, 2) for rank in range(FEW)])
    assert isinstance(run.phase, Running)
    assert len(run.phase.reducing) == 0
