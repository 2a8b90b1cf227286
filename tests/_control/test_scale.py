"""What the controller does for one event does not grow with the number of workers: whatever all of them say at once."""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType

import msgspec
import pytest

from paceline._control.events import DriverStarted, Event, StopRequested
from paceline._control.hang_detector import HangDetector
from paceline._control.run import Run, Running, Stopping
from paceline._control.step import step
from paceline._core.checkpoint_records import FileEntry, StagedFiles
from paceline._core.cursor import Cursor
from paceline._core.reductions import ReductionMark
from paceline._engine.messages import (
    CheckpointStaged,
    PreemptionNoticeReceived,
    Reported,
    WorkerFailed,
    WorkerFailure,
    WorkerHeld,
    WorkerReady,
    WorkerReturned,
)
from paceline.train.callbacks import TrainRunContext, UserCallback
from paceline.train.driver.failures import CallbackObserver, ResultCollector

FEW, MANY = 100, 3_000
ALLOWED = 4.0
"""A tree of thirty times as many entries has a level more; what looks at all of them costs thirty times as much."""

RAW = msgspec.Raw(b'{"loss":0.5}')
MARKS = (ReductionMark(("loss",), "mean"),)
CURSOR = (("train", Cursor(row=8, chunk=8, world=2)),)


def reported(rank: int, seq: int = 1, **also: object) -> Reported:
    return Reported(1, rank, seq, RAW, 0.0, "train.py:40", **also)  # type: ignore[arg-type]


def save(rank: int, **also: object) -> list[Event]:
    files = StagedFiles(rank, (FileEntry("model.pt", 1, "0"),))
    return [reported(rank, checkpoint="checkpoint_000001", **also), CheckpointStaged(1, 1, files)]


def echo(rank: int) -> WorkerFailed:
    return WorkerFailed(1, rank, WorkerFailure(rank, "user", "closed by peer", at=1.0, collateral=True))


STORMS: dict[str, Callable[[int], list[Event]]] = {
    "are ready": lambda n: [WorkerReady(1, rank, 1) for rank in range(n)],
    "report": lambda n: [reported(rank) for rank in range(n)],
    "tell where their datasets stand": lambda n: [reported(rank, data=CURSOR) for rank in range(n)],
    "report what is reduced": lambda n: [reported(rank, reduce=MARKS) for rank in range(n)],
    "report ahead of one": lambda n: [reported(rank, seq) for seq in (1, 2) for rank in range(1, n)],
    "tell it ahead of one": lambda n: [reported(r, seq, data=CURSOR) for seq in (1, 2) for r in range(1, n)],
    "report it ahead of one": lambda n: [reported(r, seq, reduce=MARKS) for seq in (1, 2) for r in range(1, n)],
    "save": lambda n: [event for rank in range(n) for event in save(rank)],
    "save what is reduced": lambda n: [event for rank in range(n) for event in save(rank, reduce=MARKS)],
    "lose their connections": lambda n: [echo(rank) for rank in range(n - 1)],
    "lose them to one that died": lambda n: [
        WorkerFailed(1, 0, WorkerFailure(0, "killed", "killed by SIGKILL")),
        *(echo(rank) for rank in range(1, n)),
    ],
    "are held": lambda n: [StopRequested(1), *(WorkerHeld(1, rank, rank) for rank in range(n))],
    "are held and return": lambda n: [
        StopRequested(1),
        *(WorkerHeld(1, rank, 1) for rank in range(n - 1)),
        *(WorkerReturned(1, rank, 1, stopped=True) for rank in range(n)),
    ],
    "return": lambda n: [WorkerReturned(1, rank, 1) for rank in range(n)],
    "are to be taken away": lambda n: [PreemptionNoticeReceived(1, 30.0, (rank,)) for rank in range(n)],
}


def count_instructions(work: Callable[[], object]) -> int:
    """Of the interpreter: unlike times, they are the same in every run."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> object:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def cost_of_each(hear: Callable[[Event], object], events: list[Event]) -> float:
    """Instructions for one event, from about fifty of them; the first and the last, which may do more, are not."""
    stride = len(events) // 50
    counts = []
    for at, event in enumerate(events):
        if at % stride == stride // 2:
            counts.append(count_instructions(lambda event=event: hear(event)))
        else:
            hear(event)
    return sum(counts) / len(counts)


def hear_all(run: Run, events: list[Event]) -> list[Run]:
    """Every version of the run on the way."""
    versions = [run]
    for event in events:
        versions.append(step(versions[-1], event)[0])
    return versions


def open_run(size: int) -> Run:
    run, _ = step(Run(), DriverStarted(size, 1))
    assert isinstance(run.phase, Running)
    return run


@pytest.mark.parametrize("what", STORMS)
def test_events_of_all_workers_cost_the_same_for_each(what: str) -> None:
    """In instructions, and in memory that one version of the run does not share with the one before."""
    instructions, num_bytes = {}, {}
    for size in (FEW, MANY):
        events = STORMS[what](size)
        versions = [open_run(size)]
        instructions[size] = cost_of_each(lambda event, v=versions: v.append(step(v[-1], event)[0]), events)
        assert isinstance(versions[-1].phase, Running | Stopping)
        tracemalloc.start()
        versions = hear_all(versions[0], events)
        num_bytes[size] = tracemalloc.get_traced_memory()[0] / len(events)
        tracemalloc.stop()
    assert instructions[MANY] < ALLOWED * instructions[FEW]
    assert num_bytes[MANY] < ALLOWED * num_bytes[FEW]


def test_the_hang_detector_does_not_look_at_all_ranks_at_every_tick() -> None:
    def count_ticks(size: int) -> int:
        run = open_run(size)
        detector = HangDetector(None, "warn", "")
        detector.start_attempt(size, 1000.0)
        for seq in (1, 2):
            for rank in range(size):
                detector.on_event(reported(rank, seq), 1000.0 + seq)
        assert detector.tick(run, 1002.0, 0.0) is None, "that time it does look"

        def tick() -> None:
            for tenth in range(21, 250):
                assert detector.tick(run, 1000.0 + tenth / 10, 0.0) is None

        return count_instructions(tick)

    assert count_ticks(MANY) < ALLOWED * count_ticks(FEW)


class CountingCallback(UserCallback):
    def __init__(self) -> None:
        self.num_heard = 0

    def after_report(self, run_context: TrainRunContext, metrics: list[object], checkpoint: object) -> None:
        self.num_heard += len(metrics)


def test_calling_a_callback_costs_the_same_for_each_report() -> None:
    def cost(size: int) -> float:
        run = open_run(size)
        callback = CountingCallback()
        about = TrainRunContext("run", None, None, None, None)
        observer = CallbackObserver(callback, about, None)  # type: ignore[arg-type]
        events = [reported(rank, seq) for seq in (1, 2) for rank in range(size)]
        result = cost_of_each(lambda event: observer.on_event(event, run), events)
        assert callback.num_heard == len(events)
        return result

    assert cost(MANY) < ALLOWED * cost(FEW)


@pytest.mark.parametrize("marks", [(), MARKS], ids=["plain", "reduced"])
def test_reports_are_gathered_at_the_same_cost_for_each(marks: tuple[ReductionMark, ...]) -> None:
    def cost(size: int) -> float:
        run = open_run(size)
        collector = ResultCollector((), run)
        # The last ones first, so that rank 0 completes each report.
        events = [reported(rank, seq, reduce=marks) for seq in (1, 2) for rank in reversed(range(size))]
        result = cost_of_each(lambda event: collector.on_event(event, run), events)
        assert collector.metrics == {"loss": 0.5}
        return result

    assert cost(MANY) < ALLOWED * cost(FEW)
