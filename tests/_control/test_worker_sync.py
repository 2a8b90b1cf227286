"""Tasks of persistent workers: dispatched once to every group, answered once by every rank."""

import msgspec
import pytest
from msgspec.structs import replace

from paceline._control.events import DriverStarted, Reported, Retention, RetentionSet, WorkerReady
from paceline._control.hang_detector import HangDetector
from paceline._control.run import Run, Stopping
from paceline._control.step import step
from paceline._control.worker_sync import Barriers, TaskQueue
from paceline._engine.messages import Joined, Release, RunTask, TaskAnswered


def running(num_ready: int = 2, attempt: int = 1) -> Run:
    run = replace(Run(), attempt=attempt - 1)
    run, _ = step(run, DriverStarted(size=2, max_failures=0))
    for rank in range(num_ready):
        run, _ = step(run, WorkerReady(attempt, rank, pid=rank + 1))
    return run


def answers(queue: TaskQueue, run: Run, *ranks: int, number: int = 1, num_reports: int = 0) -> list[bool]:
    return [queue.add_answer(TaskAnswered(run.attempt, rank, number, num_reports), run) for rank in ranks]


@pytest.fixture
def queue() -> TaskQueue:
    return TaskQueue()


def test_a_task_is_dispatched_once_all_ranks_are_ready_and_done_when_all_have_answered(queue: TaskQueue) -> None:
    run = running()
    assert queue.take_due(run) is None
    queue.submit(b"job")
    assert queue.take_due(running(num_ready=1)) is None
    assert queue.take_due(run) == RunTask(1, b"job")
    assert queue.take_due(run) is None
    assert answers(queue, run, 1, 1) == [True, False]
    assert queue.take_answers(run) is None
    assert answers(queue, run, 0) == [True]
    assert [answer.rank for answer in queue.take_answers(run) or ()] == [0, 1]
    assert queue.take_answers(run) is None
    assert queue.take_due(run) is None


def test_a_restarted_group_gets_the_task_again_and_must_answer_again(queue: TaskQueue) -> None:
    before, after = running(), running(attempt=2)
    queue.submit(b"job")
    queue.take_due(before)
    answers(queue, before, 0)
    assert queue.take_due(after) == RunTask(1, b"job")
    assert queue.add_answer(TaskAnswered(1, 1, 1, 0), after) is False
    assert answers(queue, after, 1) == [True]
    assert queue.take_answers(after) is None


def test_a_late_answer_to_an_earlier_task_does_not_count_for_the_next(queue: TaskQueue) -> None:
    run = running()
    for _ in range(2):
        queue.submit(b"job")
        queue.take_due(run)
    assert answers(queue, run, 0, 1, number=1) == [False, False]
    assert answers(queue, run, 0, 1, number=2) == [True, True]


def test_answers_of_a_group_that_is_being_stopped_are_no_result(queue: TaskQueue) -> None:
    run = running()
    queue.submit(b"job")
    queue.take_due(run)
    answers(queue, run, 0, 1)
    assert queue.take_answers(replace(run, phase=Stopping(run.phase, "failed"))) is None  # type: ignore[arg-type]


def test_a_checkpoint_that_waits_for_a_rank_that_is_done_is_reported_once(queue: TaskQueue) -> None:
    run = running()
    queue.submit(b"job")
    queue.take_due(run)
    answers(queue, run, 1, num_reports=0)
    assert queue.find_mismatch(run, 0.0) is None
    run, _ = step(run, Reported(1, 0, 1, msgspec.Raw(b"{}"), 0.0, "train.py:3", "checkpoint_000001"))
    other = TaskQueue()
    other.submit(b"job")
    other.take_due(run)
    answers(other, run, 1, num_reports=1)
    assert other.find_mismatch(run, 0.0) is None, "it has made that report"
    assert queue.find_mismatch(replace(run, phase=Stopping(run.phase, "failed")), 0.0) is None  # type: ignore[arg-type]
    failure = queue.find_mismatch(run, 2.5)
    assert failure is not None
    assert "rank 0 waits for every rank in report 1" in failure.message
    assert "rank 1 returned after 0 reports" in failure.message
    assert (failure.kind, failure.at) == ("mismatch", 2.5)
    assert queue.find_mismatch(run, 0.0) is None
    other = TaskQueue()
    other.submit(b"job")
    other.take_due(run)
    answers(other, run, 0, 1, num_reports=0)
    assert other.take_answers(run) is not None
    assert other.find_mismatch(run, 0.0) is None, "the task is done"


@pytest.mark.parametrize(("gathers", "gathered"), [(False, ()), (True, (b"0", b"1"))])
def test_a_barrier_gives_the_data_of_rank_0_or_of_every_rank(gathers: bool, gathered: tuple[bytes, ...]) -> None:
    barriers = Barriers(2)
    last, first = (Joined(1, rank, 1, "x.py:1", b"%d" % rank, gathers) for rank in (0, 1))
    assert [barriers.join(each) for each in (first, last, last)] == [None, Release(1, b"0", gathered), None]


def test_ranks_that_make_different_collective_calls_are_reported_with_both_places() -> None:
    barriers = Barriers(2)
    for rank, (call, where) in enumerate([("barrier", "x.py:7"), ("gather", "x.py:9")]):
        assert barriers.join(Joined(1, rank, 1, where, gathers=call == "gather", call=call)) is None
    failure = barriers.find_mismatch(2.0)
    assert failure is not None
    assert "rank 0 calls barrier at x.py:7, but rank 1 calls gather at x.py:9" in failure.message
    assert (failure.kind, failure.at, failure.frames, failure.retriable) == ("mismatch", 2.0, ("x.py:7",), False)
    assert barriers.find_mismatch(3.0) is None


def test_idle_ranks_are_not_sampled_and_busy_ones_are() -> None:
    run, detector = running(), HangDetector(1.0, "warn", "/runs/a")
    detector.start_attempt(2, 0.0)
    for rank in range(2):
        detector.mark_idle(rank, 0.0)
    assert all(detector.tick(run, now / 10, 0.0) is None for now in range(1, 1000))
    detector.mark_all_busy(100.0)
    times = [now for now in range(1001, 1100) if detector.tick(run, now / 10, 0.0) is not None]
    assert times
    assert times[0] / 10 - 100 >= detector.threshold_s(first=True)


def test_idle_time_is_no_part_of_the_time_between_reports() -> None:
    detector = HangDetector(None, "warn", "/runs/a")
    detector.start_attempt(1, 0.0)
    before = detector.threshold_s(first=False)
    for now in (1.0, 1000.0):
        detector.on_event(Reported(1, 0, int(now), msgspec.Raw(b"{}"), now, ""), now)
        detector.mark_idle(0, now + 1)
        detector.mark_all_busy(now + 900)
    assert detector.threshold_s(first=False) == before


def test_another_retention_holds_from_where_it_is_set() -> None:
    run = running()
    after, commands = step(run, RetentionSet(1, Retention(2, "loss", "min")))
    assert (after.retention, commands) == (Retention(2, "loss", "min"), [])
    assert step(after, RetentionSet(1, Retention(2, "loss", "min")))[0] is after
