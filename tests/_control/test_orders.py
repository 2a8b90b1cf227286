"""Orders to workers that stand by: passed on once to every group, answered once by every rank."""

import msgspec
import pytest
from msgspec.structs import replace

from paceline._control.events import DriverStarted, Reported, Retention, RetentionSet, WorkerReady
from paceline._control.hang_detector import HangDetector
from paceline._control.run import Run, Stopping
from paceline._control.step import step
from paceline._control.task_queue import TaskQueue
from paceline._engine.messages import RunTask, TaskAnswered


def running(num_ready: int = 2, attempt: int = 1) -> Run:
    run = replace(Run(), attempt=attempt - 1)
    run, _ = step(run, DriverStarted(size=2, max_failures=0))
    for rank in range(num_ready):
        run, _ = step(run, WorkerReady(attempt, rank, pid=rank + 1))
    return run


def answers(orders: TaskQueue, run: Run, *ranks: int, number: int = 1, num_reports: int = 0) -> list[bool]:
    return [orders.add_answer(TaskAnswered(run.attempt, rank, number, num_reports), run) for rank in ranks]


@pytest.fixture
def orders() -> TaskQueue:
    return TaskQueue()


def test_an_order_is_passed_on_once_all_are_ready_and_is_done_when_all_have_answered(orders: TaskQueue) -> None:
    run = running()
    assert orders.take_due(run) is None
    orders.submit(b"job")
    assert orders.take_due(running(num_ready=1)) is None
    assert orders.take_due(run) == RunTask(1, b"job")
    assert orders.take_due(run) is None
    assert answers(orders, run, 1, 1) == [True, False]
    assert orders.take_answers(run) is None
    assert answers(orders, run, 0) == [True]
    assert [answer.rank for answer in orders.take_answers(run) or ()] == [0, 1]
    assert orders.take_answers(run) is None
    assert orders.take_due(run) is None


def test_a_group_that_was_started_again_gets_it_again_and_must_answer_anew(orders: TaskQueue) -> None:
    before, after = running(), running(attempt=2)
    orders.submit(b"job")
    orders.take_due(before)
    answers(orders, before, 0)
    assert orders.take_due(after) == RunTask(1, b"job")
    assert orders.add_answer(TaskAnswered(1, 1, 1, 0), after) is False
    assert answers(orders, after, 1) == [True]
    assert orders.take_answers(after) is None


def test_the_answer_to_an_order_that_nobody_waits_for_any_more_is_not_that_to_the_next(orders: TaskQueue) -> None:
    run = running()
    for _ in range(2):
        orders.submit(b"job")
        orders.take_due(run)
    assert answers(orders, run, 0, 1, number=1) == [False, False]
    assert answers(orders, run, 0, 1, number=2) == [True, True]


def test_what_ranks_answer_while_the_group_is_being_stopped_is_no_result(orders: TaskQueue) -> None:
    run = running()
    orders.submit(b"job")
    orders.take_due(run)
    answers(orders, run, 0, 1)
    assert orders.take_answers(replace(run, phase=Stopping(run.phase, "failed"))) is None  # type: ignore[arg-type]


def test_a_checkpoint_that_waits_for_a_rank_which_is_done_is_told_once(orders: TaskQueue) -> None:
    run = running()
    orders.submit(b"job")
    orders.take_due(run)
    answers(orders, run, 1, num_reports=0)
    assert orders.find_mismatch(run, 0.0) is None
    run, _ = step(run, Reported(1, 0, 1, msgspec.Raw(b"{}"), 0.0, "train.py:3", "checkpoint_000001"))
    told = orders.find_mismatch(run, 0.0)
    assert told is not None
    assert "rank 0 waits for every rank in report 1" in told.message
    assert "rank 1 has returned after 0 reports" in told.message
    assert orders.find_mismatch(run, 0.0) is None


def test_ranks_at_rest_are_not_asked_what_they_do_and_those_with_an_order_are() -> None:
    run, watch = running(), HangDetector(1.0, "warn", "/runs/a")
    watch.start_attempt(2, 0.0)
    for rank in range(2):
        watch.mark_idle(rank, 0.0)
    assert all(watch.tick(run, now / 10, 0.0) is None for now in range(1, 1000))
    watch.mark_all_busy(100.0)
    asked = [now for now in range(1001, 1100) if watch.tick(run, now / 10, 0.0) is not None]
    assert asked
    assert asked[0] / 10 - 100 >= watch.threshold_s(first=True)


def test_how_long_ranks_rested_is_not_how_long_they_take_to_a_report() -> None:
    watch = HangDetector(None, "warn", "/runs/a")
    watch.start_attempt(1, 0.0)
    before = watch.threshold_s(first=False)
    for now in (1.0, 1000.0):
        watch.on_event(Reported(1, 0, int(now), msgspec.Raw(b"{}"), now, ""), now)
        watch.mark_idle(0, now + 1)
        watch.mark_all_busy(now + 900)
    assert watch.threshold_s(first=False) == before


def test_another_retention_holds_from_where_it_is_set() -> None:
    run = running()
    after, commands = step(run, RetentionSet(1, Retention(2, "loss", "min")))
    assert (after.retention, commands) == (Retention(2, "loss", "min"), [])
    assert step(after, RetentionSet(1, Retention(2, "loss", "min")))[0] is after
