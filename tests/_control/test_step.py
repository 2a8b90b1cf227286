"""Examples of `step`: an event, the phase of the run after it, and the commands it asks for.

Each table reads from top to bottom. `properties/test_step.py` compares the same function with a model, for events in
any order; what the model knows is not repeated here, beyond one example of each feature.
"""

import pytest
from msgspec import Raw
from msgspec.structs import replace

from paceline._control.attempt_reports import make_count_mismatch
from paceline._control.commands import (
    Broadcast,
    Command,
    CommitCheckpoint,
    StartValidation,
    StartWorkers,
    StopWorkers,
    StopWorkersAt,
)
from paceline._control.events import (
    CheckpointVerified,
    Committed,
    DeadlinePassed,
    DriverStarted,
    Event,
    HangCleared,
    HangSuspected,
    PreemptionNoticeReceived,
    ResizeDue,
    Retention,
    StopRequested,
    ValidationEnded,
    WorkersStopped,
)
from paceline._control.retry_policy import first_failure
from paceline._control.run import BackingOff, Finished, Phase, Restoring, Run, Running, Stopping, Unopened, Waiting
from paceline._control.step import EXIT_DELAY_NOTICE_S, InvalidTransition, next_deadline, step, step_reports
from paceline._core.checkpoint_records import CheckpointRecord, FileEntry, StagedFiles
from paceline._core.cursor import ConsumedAhead, Cursor
from paceline._engine.messages import (
    CheckpointCommitted,
    CheckpointStaged,
    ExitDelayed,
    Reported,
    WorkerFailed,
    WorkerFailure,
    WorkerReady,
    WorkerReturned,
)

Line = tuple[Event, type[Phase], list[Command]]


def step_through(run: Run, *table: Line) -> Run:
    """Send the events of a table, and compare the phase and the commands after each."""
    for number, (event, phase, commands) in enumerate(table):
        run, requested = step(run, event)
        assert requested == commands, f"line {number}: {event}"
        assert isinstance(run.phase, phase), f"line {number}: {event}"
    return run


def apply(run: Run, *events: Event) -> Run:
    """Send events of which only the end matters."""
    for event in events:
        run, _ = step(run, event)
    return run


def reported(rank: int, seq: int, *, files: bool = False, attempt: int = 1) -> Reported:
    name = f"checkpoint_{seq:06d}" if files else None
    metrics = Raw(b'{"loss":0.5,"rank":%d}' % rank)
    return Reported(attempt, rank, seq, metrics, 0.0, f"train.py:{10 * seq + rank} in train_fn", name)


def part(rank: int) -> StagedFiles:
    return StagedFiles(rank, (FileEntry(f"rank_{rank}.bin", 5, "abc"),))


def staged(rank: int, seq: int, *, attempt: int = 1) -> CheckpointStaged:
    return CheckpointStaged(attempt, seq, part(rank))


def record(seq: int, *, attempt: int = 1, num_parts: int = 1, name: str | None = None) -> CheckpointRecord:
    name = name or f"checkpoint_{seq:06d}"
    return CheckpointRecord(seq, name, attempt, Raw(b'{"loss":0.5,"rank":0}'), 5 * num_parts)


def failed(rank: int, *, attempt: int = 1, **about: object) -> WorkerFailed:
    values = {"kind": "user", "message": f"ValueError: rank {rank}", "at": 1.0, **about}
    return WorkerFailed(attempt, rank, WorkerFailure(rank, **values))


def returned(rank: int, num_reports: int, *, attempt: int = 1, stopped: bool = False) -> WorkerReturned:
    return WorkerReturned(attempt, rank, num_reports, f"train.py:{90 + rank} in train_fn", stopped)


def running(size: int = 2, *, max_failures: int = 0) -> Run:
    return apply(Run(), DriverStarted(size, max_failures))


def test_a_run_starts_commits_and_ends() -> None:
    both = record(1, num_parts=2)
    run = step_through(
        Run(),
        (DriverStarted(2, 0), Running, [StartWorkers(1, 2, None)]),
        (WorkerReady(1, 0, 100), Running, []),
        (WorkerReady(1, 1, 101), Running, []),
        (reported(0, 1, files=True), Running, []),
        (staged(0, 1), Running, []),
        (reported(1, 1, files=True), Running, []),
        (staged(1, 1), Running, [CommitCheckpoint(both, (part(0), part(1)))]),
        (Committed(both), Running, [Broadcast(1, CheckpointCommitted(both))]),
        (returned(0, 1), Running, []),
        (returned(1, 1), Stopping, [StopWorkers(1, kill=False)]),
        (WorkersStopped(1), Finished, []),
    )
    assert run.phase == Finished("complete")
    assert run.latest == both
    assert run.num_reports == 1


def test_a_checkpoint_carries_where_the_datasets_stood_on_all_ranks_whoever_comes_first() -> None:
    def standing(rank: int, seq: int, row: int) -> Reported:
        cursor = Cursor(row=row, chunk=8, world=2)
        return replace(reported(rank, seq, files=rank == 1), data=(("train", cursor),))

    for order in ((0, 1), (1, 0)):
        run = running(2)
        for seq, rows in ((1, (8, 8)), (2, (16, 24))):
            # Rank 0 is far ahead in its reports: what it stood at by the one at hand counts.
            for rank in order:
                run, _ = step(run, standing(rank, seq, rows[rank]))
        records = []
        for seq in (1, 2):
            run, [commit] = step(run, staged(1, seq))
            assert isinstance(commit, CommitCheckpoint)
            records.append(commit.record)
        assert records[0].data == (("train", Cursor(row=8, chunk=8, world=2)),)
        ahead = ConsumedAhead(row=16, leads=((24, "2"),), chunk=8, world=2)
        assert records[1].data == (("train", Cursor(row=16, chunk=8, world=2, ahead=ahead)),)


def test_places_in_datasets_that_no_checkpoint_will_need_are_forgotten() -> None:
    run = running(2)
    for seq in range(1, 50):
        for rank in (0, 1):
            run, _ = step(run, replace(reported(rank, seq), data=(("train", Cursor(row=seq)),)))
    assert isinstance(run.phase, Running)
    assert len(run.phase.positions) <= 2


@pytest.mark.parametrize("data", [(), (("train", Cursor(row=1)),)], ids=["alone", "with places in datasets"])
def test_the_metrics_of_the_last_64_reports_are_kept_for_late_checkpoints(data: tuple[object, ...]) -> None:
    run = apply(running(2), *(replace(reported(rank, seq), data=data) for seq in range(1, 71) for rank in (0, 1)))
    assert [seq for seq, _ in run.phase.recent] == list(range(7, 71))
    assert run.num_reports == 70


def test_reports_that_are_taken_together_come_to_the_same_run_as_one_by_one() -> None:
    run = apply(Run(), DriverStarted(2, 0), failed(0, kind="engine"), WorkersStopped(1))
    assert (run.attempt, run.num_engine_failures_without_report) == (2, 1)
    for ranks in ((1,), (0, 1), (0, 0, 1)):
        batch = [reported(rank, seq, attempt=2) for seq in (1, 2, 1, 3) for rank in ranks]
        after = apply(run, *batch)
        effective = [each for number, each in enumerate(batch) if each not in batch[:number]]
        assert step_reports(run, batch, 0) == (after, effective, len(batch))
        assert step_reports(run, [*batch, reported(0, 4, files=True, attempt=2)], 0) == (after, effective, len(batch))
        assert (after.num_reports, after.num_engine_failures_without_report) == (3 if 0 in ranks else 0, 0)


def test_a_run_that_no_driver_has_opened_has_nothing_yet() -> None:
    fresh = Run(
        *(1, (1,), None, 0.0, 0, -1, -1, 10.0, Retention(None, None, "max"), None, "", Unopened(), 0, 0, 0, 0, 0, ""),
        *(0, 0, (), (), (), (), None, 0, False, False, False, None),
    )
    assert Run() == fresh
    assert fresh.latest is None
    assert StopWorkersAt(1, 2) == StopWorkersAt(1, 2, True, None, 0)


def test_the_first_failure_in_time_is_the_cause_whichever_arrives_first() -> None:
    echo = failed(0, at=9.0, message="RuntimeError: connection closed by peer")
    cause = failed(2, at=3.0, message="ValueError: loss is nan")
    for events in ((echo, cause), (cause, echo)):
        run = apply(running(3), *events, WorkersStopped(1))
        assert isinstance(run.phase, Finished)
        assert first_failure(run.phase.failures) == cause.failure
    assert first_failure([failed(2).failure, failed(1).failure]).rank == 1, "of one time, the lowest rank's"
    late, early = failed(1, at=2.0).failure, failed(0, at=1.0, collateral=True).failure
    assert first_failure([early, late]) == late, "an echo is not the cause, though its clock says so"
    assert first_failure([early]) == early


BOTH = [reported(0, 1), reported(1, 1)]


def commit_in(attempt: int) -> list[Event]:
    """What `BOTH` is without a checkpoint."""
    reports = [reported(rank, 1, files=rank == 0, attempt=attempt) for rank in (0, 1)]
    return [*reports, staged(0, 1, attempt=attempt), Committed(record(1, attempt=attempt))]


@pytest.mark.parametrize(
    ("first", "second", "is_tried_again"),
    [
        ([failed(0)], [failed(0, attempt=2)], False),
        ([failed(0, message="<A at 0x7fab>: 7")], [failed(1, attempt=2, message="<A at 0x81cd>: 8")], False),
        ([failed(0)], [reported(0, 1, attempt=2), failed(0, attempt=2)], True),
        ([*BOTH, failed(0)], [*commit_in(2), failed(0, attempt=2)], True),
    ],
    ids=["same", "other rank, address and number", "a report later", "a checkpoint later"],
)
def test_the_same_exception_at_the_same_place_twice_is_not_tried_a_third_time(
    first: list[Event], second: list[Event], is_tried_again: bool
) -> None:
    run = apply(running(2, max_failures=9), *first, WorkersStopped(1), *second, WorkersStopped(2))
    assert isinstance(run.phase, Running | Restoring if is_tried_again else Finished)
    assert is_tried_again or "deterministic" in run.phase.reason


@pytest.mark.parametrize(
    "second",
    [
        {"message": "KeyError: rank 0"},
        {"frames": ("train.py:7 in train_fn",)},
        {"transient": True},
        {"kind": "killed"},
        {"collateral": True},
    ],
)
def test_another_exception_another_place_or_one_of_the_world_around_is_tried_again(second: dict[str, object]) -> None:
    run = apply(running(1, max_failures=9), failed(0, **second), WorkersStopped(1))
    run = apply(run, failed(0, attempt=2), WorkersStopped(2), DeadlinePassed(3))
    run = apply(run, failed(0, attempt=3, **second), WorkersStopped(3), DeadlinePassed(4))
    run = apply(run, failed(0, attempt=4), WorkersStopped(4))
    assert isinstance(run.phase, BackingOff)


def test_attempts_that_fail_without_progress_start_further_and_further_apart() -> None:
    run, now, delays = running(1, max_failures=-1), 100.0, []
    for attempt in range(1, 12):
        if attempt == 9:
            run, _ = step(run, reported(0, 1, attempt=attempt), now)
        run, _ = step(run, failed(0, attempt=attempt, kind="killed"), now)
        run, commands = step(run, WorkersStopped(attempt), now)
        delays.append((next_deadline(run) or now) - now)
        if isinstance(run.phase, BackingOff):
            assert commands == []
            now += delays[-1]
            run, commands = step(run, DeadlinePassed(attempt + 1), now)
        assert commands == [StartWorkers(attempt + 1, 1, None)]
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 0.0, 0.0, 0.5]
    assert run.num_failures == 11


def test_a_journal_from_before_there_was_a_wait_between_attempts_is_replayed() -> None:
    run = apply(running(1, max_failures=9), failed(0, kind="killed"), WorkersStopped(1), failed(0, attempt=2))
    waiting = apply(run, WorkersStopped(2))
    assert isinstance(waiting.phase, BackingOff)
    assert isinstance(apply(waiting, WorkerReady(3, 0, 100)).phase, Running)


SHORT = [reported(0, 1), returned(0, 1)]
LONG = [reported(1, 1), reported(1, 2, files=True)]


@pytest.mark.parametrize("events", [SHORT + LONG, LONG + SHORT, [*LONG, returned(1, 2), *SHORT]])
def test_a_checkpoint_that_a_returned_rank_never_comes_to_fails_the_run_with_both_places(events: list[Event]) -> None:
    *before, last = events
    run = step_through(
        apply(running(2, max_failures=3), *before),
        (last, Stopping, [StopWorkers(1, kill=True)]),
        (WorkersStopped(1), Finished, []),
    )
    [failure] = run.phase.failures
    assert (run.phase.ending, failure.kind, failure.retriable) == ("failed", "mismatch", False)
    assert failure.message == (
        "ReportMismatchError: rank 1 waits for every rank in report 2 with a checkpoint, called at "
        "train.py:21 in train_fn, but rank 0 returned after 1 report; the last at train.py:90 in train_fn"
    )
    assert failure.frames == ("train.py:21 in train_fn",)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_ranks_that_return_after_different_numbers_of_reports_fail_the_run_once_all_have(order: tuple[int]) -> None:
    run = running(3, max_failures=3)
    for rank in order:
        assert isinstance(run.phase, Running)
        run, commands = step(run, returned(rank, 1 + rank))
    assert commands == [StopWorkers(1, kill=False)]
    run = apply(run, WorkersStopped(1))
    [failure] = run.phase.failures
    assert (failure.rank, failure.kind, failure.retriable) == (0, "mismatch", False)
    assert failure.message == (
        "ReportMismatchError: rank 0 returned after 1 report, the last at train.py:90 in train_fn, while rank 2 made "
        "3, the last at train.py:92 in train_fn"
    )
    assert failure.frames == ("train.py:90 in train_fn",)
    stopped = apply(running(2), returned(0, 1), returned(1, 2, stopped=True), WorkersStopped(1))
    assert stopped.phase.ending == "interrupted"


def test_of_ranks_with_equally_many_reports_the_first_to_return_is_named() -> None:
    run = apply(running(4), *(returned(rank, num) for rank, num in ((2, 1), (0, 1), (1, 3), (3, 3))), WorkersStopped(1))
    assert [failure.rank for failure in run.phase.failures] == [2]
    assert "while rank 1 made 3" in run.phase.failures[0].message
    failure = make_count_mismatch((0, 0, ""), (1, 2, ""))
    assert failure.message == "ReportMismatchError: rank 0 returned after 0 reports while rank 1 made 2"
    assert failure.frames == ()


def test_a_rank_that_returned_early_is_the_cause_of_connections_that_break() -> None:
    run = apply(running(2, max_failures=0), reported(0, 1), returned(0, 1), reported(1, 1))
    run = apply(run, failed(1, collateral=True, frames=("train.py:41 in train_fn",)), WorkersStopped(1))
    cause = first_failure(run.phase.failures)
    assert (cause.rank, cause.kind) == (0, "mismatch")
    assert cause.message == (
        "returned after 1 report, the last at train.py:90 in train_fn, while rank 1 still waited for it at train.py:41"
    )


def test_the_validation_of_a_checkpoint_whose_name_was_used_again_is_dropped() -> None:
    first, again = (replace(record(seq, name="best"), status="PENDING_VALIDATION") for seq in (1, 2))
    run = apply(Run(), DriverStarted(1, 0, validates=True), Committed(first), Committed(again))
    step_through(run, (ValidationEnded(1, 1, "best", "VALIDATED"), Running, [StartValidation(again)]))


def test_an_impossible_event_is_refused_with_the_event_and_the_phase() -> None:
    with pytest.raises(InvalidTransition, match=r"CheckpointVerified\(attempt=1, seq=1\) in Running\("):
        step(running(1), CheckpointVerified(1, 1))


def hung(action: str, *, retriable: bool = True) -> HangSuspected:
    failure = WorkerFailure(1, "hang", "rank 1 has been stuck at train.py:41 for 45 s", retriable=retriable)
    return HangSuspected(1, failure, action)


def test_a_hang_is_not_waited_for():
    run, _ = step(apply(running(2), reported(1, 1)), hung("restart"), 5.0)
    assert next_deadline(run) == 5.0


def test_a_hang_warning_changes_nothing_but_the_recorded_hang():
    run = step_through(running(2), (hung("warn"), Running, []))
    assert run.phase.hang == "rank 1 has been stuck at train.py:41 for 45 s"
    assert apply(run, HangCleared(1, 1, 60.0)) == running(2)


@pytest.mark.parametrize(("action", "retriable", "after"), [("restart", True, Running), ("fail", False, Finished)])
def test_a_hang_ends_the_attempt_and_is_retried_only_if_it_may_be(action, retriable, after):
    run = step_through(
        running(2, max_failures=1),
        (hung(action, retriable=retriable), Stopping, [StopWorkers(1, kill=True)]),
        (hung(action), Stopping, []),
        (HangCleared(1, 1), Stopping, []),
    )
    run = apply(run, WorkersStopped(1))
    assert isinstance(run.phase, after)
    assert run.num_failures == retriable


def test_what_keeps_a_rank_from_exiting_is_noted_once() -> None:
    run = apply(running(1), returned(0, 0))
    late = apply(run, ExitDelayed(1, 0, "thread 'prefetch'", 10.0))
    assert dict(late.phase.delayed_exits.items()) == {0: "thread 'prefetch'"}
    assert step(late, ExitDelayed(1, 0, "again", 10.0)) == (late, [])


def test_workers_that_returned_and_do_not_exit_are_killed_once_their_time_is_up() -> None:
    run, commands = step(running(1), returned(0, 0), 100.0)
    assert commands == [StopWorkers(1, kill=False)]
    assert next_deadline(run) == 100.0 + run.exit_grace_s + EXIT_DELAY_NOTICE_S
    run = step_through(run, (DeadlinePassed(1), Stopping, [StopWorkers(1, kill=True)]))
    assert next_deadline(run) is None
    step_through(run, (DeadlinePassed(1), Stopping, []), (WorkersStopped(1), Finished, []))


@pytest.mark.parametrize("phase", [BackingOff(1.0, 2.0), Restoring(record(1)), Waiting()])
def test_a_notice_for_the_drivers_machine_ends_a_run_without_workers_and_one_for_another_does_not(phase: Phase) -> None:
    run = replace(running(1), phase=phase)
    assert step(run, PreemptionNoticeReceived(1, 30.0, (0,), includes_driver=False)) == (run, [])
    ended, commands = step(run, PreemptionNoticeReceived(1, 30.0))
    assert (ended.phase, ended.preempted, commands) == (Finished("preempted"), True, [])


@pytest.mark.parametrize(
    ("event", "ending"),
    [(StopRequested(1), "interrupted"), (PreemptionNoticeReceived(1, 30.0), "preempted"), (None, None)],
)
def test_a_run_that_stops_to_grow_goes_on_unless_it_is_asked_to_end_meanwhile(
    event: Event | None, ending: str | None
) -> None:
    run = replace(apply(Run(), DriverStarted(1, 0, sizes=(1, 2), num_places=1)), num_places=2)
    run = apply(run, ResizeDue(1), Committed(record(1)))
    assert run.phase.ending == "resized"
    run = apply(run, *([event] if event is not None else []), WorkersStopped(1))
    assert run.phase == (Restoring(record(1)) if ending is None else Finished(ending))


def test_a_checkpoint_that_was_asked_for_later_belongs_to_the_report_that_waits() -> None:
    late = CheckpointStaged(1, 2, part(0), "checkpoint_000002")
    step_through(
        apply(running(1), reported(0, 1), reported(0, 2)),
        (CheckpointStaged(1, 1, part(0), "checkpoint_000001"), Running, []),  # Of a report that has returned.
        (late, Running, [CommitCheckpoint(record(2), (part(0),))]),
        (late, Running, []),
        (Committed(record(2)), Running, [Broadcast(1, CheckpointCommitted(record(2)))]),
        (late, Running, []),
    )
