"""Examples of `step`: an event, the phase of the run after it, and the commands it asks for.

Each table reads from top to bottom. `properties/test_step.py` compares the same function with a model, for events in
any order; what the model knows is not repeated here, beyond one example of each feature.
"""

import pytest
from msgspec import Raw
from msgspec.structs import replace

from paceline._control.commands import (
    Broadcast,
    Command,
    CommitCheckpoint,
    DeleteCheckpoint,
    StartValidation,
    StartWorkers,
    StopWorkers,
    VerifyCheckpoint,
)
from paceline._control.events import (
    CapacityChanged,
    CheckpointVerified,
    Committed,
    DeadlinePassed,
    DriverStarted,
    Event,
    HangCleared,
    HangSuspected,
    PinsSet,
    ResizeDue,
    Retention,
    ValidationEnded,
    WorkersStopped,
)
from paceline._control.retry_policy import first_failure
from paceline._control.run import Finished, Phase, Restoring, Run, Running, Stopping, Validating
from paceline._control.step import EXIT_DELAY_NOTICE_S, InvalidTransition, next_deadline, step
from paceline._core.checkpoint_records import CheckpointRecord, FileEntry, StagedFiles, ValidationTask
from paceline._core.cursor import ConsumedAhead, Cursor
from paceline._engine.messages import (
    CheckpointCommitted,
    CheckpointsRemoved,
    CheckpointStaged,
    CheckpointValidated,
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


def commit_first(run: Run) -> Run:
    """All ranks report a checkpoint, and it is committed."""
    for rank in range(run.size):
        run = apply(run, reported(rank, 1, files=True), staged(rank, 1))
    return apply(run, Committed(record(1, num_parts=run.size)))


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


def test_a_checkpoint_waits_for_ranks_that_bring_no_files() -> None:
    step_through(
        running(3),
        (reported(1, 1, files=True), Running, []),
        (staged(1, 1), Running, []),
        (reported(2, 1), Running, []),
        (reported(0, 1), Running, [CommitCheckpoint(record(1), (part(1),))]),
    )


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


def test_a_pinned_checkpoint_stays_until_it_is_not_and_then_goes_at_once() -> None:
    run = apply(Run(), DriverStarted(1, 0, Retention(num_to_keep=1)))
    for seq in (1, 2, 3):
        run = apply(run, reported(0, seq, files=True), staged(0, seq))
    run = step_through(
        run,
        (Committed(record(1)), Running, [Broadcast(1, CheckpointCommitted(record(1)))]),
        (PinsSet(1, (1,)), Running, []),
        (Committed(record(2)), Running, [Broadcast(1, CheckpointCommitted(record(2)))]),
        (
            Committed(record(3)),
            Running,
            [Broadcast(1, CheckpointCommitted(record(3), (2,))), DeleteCheckpoint(record(2))],
        ),
        (PinsSet(1, ()), Running, [Broadcast(1, CheckpointsRemoved((1,))), DeleteCheckpoint(record(1))]),
    )
    assert (run.checkpoints, run.pinned) == ((record(3),), ())


def test_places_in_datasets_that_no_checkpoint_will_need_are_forgotten() -> None:
    run = running(2)
    for seq in range(1, 50):
        for rank in (0, 1):
            run, _ = step(run, replace(reported(rank, seq), data=(("train", Cursor(row=seq)),)))
    assert isinstance(run.phase, Running)
    assert len(run.phase.positions) <= 2


def test_the_end_waits_for_a_commit_that_the_stop_overtook() -> None:
    run = apply(running(1), reported(0, 1, files=True), staged(0, 1))
    run = step_through(
        run,
        (returned(0, 1), Stopping, [StopWorkers(1, kill=False)]),
        (WorkersStopped(1), Stopping, []),
        (Committed(record(1)), Finished, [Broadcast(1, CheckpointCommitted(record(1)))]),
    )
    assert run.latest == record(1)


def test_the_first_failure_in_time_is_the_cause_whichever_arrives_first() -> None:
    echo = failed(0, at=9.0, message="RuntimeError: connection closed by peer")
    cause = failed(2, at=3.0, message="ValueError: loss is nan")
    for events in ((echo, cause), (cause, echo)):
        run = apply(running(3), *events, WorkersStopped(1))
        assert isinstance(run.phase, Finished)
        assert first_failure(run.phase.failures) == cause.failure
    assert first_failure([failed(2).failure, failed(1).failure]).rank == 1, "of one time, the lowest rank's"


def test_an_echo_is_not_the_cause_though_its_clock_says_so() -> None:
    echo = failed(0, at=1.0, collateral=True).failure
    cause = failed(1, at=2.0).failure
    assert first_failure([echo, cause]) == cause
    assert first_failure([echo]) == echo


@pytest.mark.parametrize(
    ("first", "second", "is_tried_again"),
    [
        ([failed(0)], [failed(0, attempt=2)], False),
        ([failed(0, message="<A at 0x7fab>: 7")], [failed(1, attempt=2, message="<A at 0x81cd>: 8")], False),
        ([failed(0)], [reported(0, 1, attempt=2), failed(0, attempt=2)], True),
    ],
    ids=["same", "other rank, address and number", "a report later"],
)
def test_the_same_exception_at_the_same_place_twice_is_not_tried_a_third_time(
    first: list[Event], second: list[Event], is_tried_again: bool
) -> None:
    run = apply(running(2, max_failures=9), *first, WorkersStopped(1), *second, WorkersStopped(2))
    assert isinstance(run.phase, Running if is_tried_again else Finished)
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
    run = apply(run, failed(0, attempt=2), WorkersStopped(2))
    run = apply(run, failed(0, attempt=3, **second), WorkersStopped(3))
    run = apply(run, failed(0, attempt=4), WorkersStopped(4))
    assert isinstance(run.phase, Running)


def test_each_class_of_failure_has_a_budget_of_its_own() -> None:
    run = apply(Run(), DriverStarted(1, 1, max_preemption_failures=1, controller_failure_limit=1))
    kinds = ["killed", "preempted", "engine"]
    for attempt, kind in enumerate(kinds, start=1):
        run = apply(run, reported(0, 1, attempt=attempt), failed(0, attempt=attempt, kind=kind))
        run = apply(run, WorkersStopped(attempt))
        assert isinstance(run.phase, Running), kind
    for kind, limit in (
        ("user", "max_failures=1"),
        ("preempted", "max_preemption_failures=1"),
        ("engine", "controller_failure_limit=1"),
    ):
        ended = apply(run, reported(0, 1, attempt=4), failed(0, attempt=4, kind=kind), WorkersStopped(4))
        assert isinstance(ended.phase, Finished)
        assert ended.phase.reason == limit


def test_a_lost_place_costs_no_failure_and_where_there_is_room_again_workers_join_at_the_next_commit() -> None:
    large, small = record(1, num_parts=2), record(2, attempt=2)
    run = step_through(
        commit_first(apply(Run(), DriverStarted(2, 0, sizes=(1, 2)))),
        (failed(1, kind="killed"), Stopping, [StopWorkers(1, kill=True)]),
        (CapacityChanged(1, 1), Stopping, []),
        (WorkersStopped(1), Restoring, [VerifyCheckpoint(2, large)]),
        (CheckpointVerified(2, 1), Running, [StartWorkers(2, 1, large)]),
        (reported(0, 2, files=True, attempt=2), Running, []),
        (CapacityChanged(2, 2), Running, []),
        (ResizeDue(2), Running, []),
        (staged(0, 2, attempt=2), Running, [CommitCheckpoint(small, (part(0),))]),
        (Committed(small), Stopping, [Broadcast(2, CheckpointCommitted(small)), StopWorkers(2, kill=True)]),
        (WorkersStopped(2), Restoring, [VerifyCheckpoint(3, small)]),
        (CheckpointVerified(3, 2), Running, [StartWorkers(3, 2, small)]),
    )
    assert run.num_failures == 0


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
        "train.py:21 in train_fn, but rank 0 returned after 1 reports; the last at train.py:90 in train_fn"
    )
    assert failure.frames == ("train.py:21 in train_fn",)


def test_a_rank_that_returned_early_is_the_cause_of_connections_that_break() -> None:
    run = apply(running(2, max_failures=0), reported(0, 1), returned(0, 1), reported(1, 1))
    run = apply(run, failed(1, collateral=True, frames=("train.py:41 in train_fn",)), WorkersStopped(1))
    cause = first_failure(run.phase.failures)
    assert (cause.rank, cause.kind) == (0, "mismatch")
    assert cause.message == (
        "returned after 1 report, the last at train.py:90 in train_fn, while rank 1 still waited for it at train.py:41"
    )


TASK = ValidationTask(Raw(b'{"split":"test"}'), 60.0)


def report_to_validate(seq: int) -> Reported:
    return replace(reported(0, seq, files=True), validation=TASK)


def unvalidated(seq: int, name: str | None = None) -> CheckpointRecord:
    return replace(record(seq, name=name), validation=TASK, status="PENDING_VALIDATION")


def validated(seq: int) -> ValidationEnded:
    return ValidationEnded(1, seq, f"checkpoint_{seq:06d}", "VALIDATED", Raw(b'{"accuracy":0.5}'))


def score(seq: int) -> CheckpointRecord:
    """The record after its validation."""
    return replace(unvalidated(seq), status="VALIDATED", metrics=Raw(b'{"loss":0.5,"rank":0,"accuracy":0.5}'))


def test_validations_are_made_one_after_the_other_and_the_end_waits_for_them_and_no_longer() -> None:
    step_through(
        Run(),
        (DriverStarted(1, 0, validates=True), Running, [StartWorkers(1, 1, None)]),
        (report_to_validate(1), Running, []),
        (staged(0, 1), Running, [CommitCheckpoint(unvalidated(1), (part(0),))]),
        (
            Committed(unvalidated(1)),
            Running,
            [Broadcast(1, CheckpointCommitted(unvalidated(1))), StartValidation(unvalidated(1))],
        ),
        (report_to_validate(2), Running, []),
        (staged(0, 2), Running, [CommitCheckpoint(unvalidated(2), (part(0),))]),
        (Committed(unvalidated(2)), Running, [Broadcast(1, CheckpointCommitted(unvalidated(2)))]),
        (validated(1), Running, [Broadcast(1, CheckpointValidated(score(1))), StartValidation(unvalidated(2))]),
        (returned(0, 2), Stopping, [StopWorkers(1, kill=False)]),
        (WorkersStopped(1), Validating, []),
        (DeadlinePassed(1), Validating, []),
        (validated(2), Finished, []),
    )


def test_a_rank_that_returned_after_all_its_reports_does_not_fail_those_that_are_behind() -> None:
    run = apply(running(), reported(0, 1, files=True), reported(0, 2, files=True), returned(0, 2))
    run = apply(run, reported(1, 1, files=True), reported(1, 2, files=True))
    assert isinstance(run.phase, Running)
    assert isinstance(apply(run, reported(1, 3, files=True)).phase, Stopping)


def test_the_others_have_ten_seconds_after_the_first_rank_has_stopped() -> None:
    run, _ = step(step(running(3), returned(0, 0, stopped=True), 100.0)[0], returned(1, 0, stopped=True), 105.0)
    assert run.phase.stop_deadline == 110.0


def test_the_validation_of_a_checkpoint_that_was_replaced_is_dropped() -> None:
    """Its name was used again while it was being validated."""
    again = unvalidated(2, name="checkpoint_000001")
    run = apply(Run(), DriverStarted(1, 0, validates=True), report_to_validate(1), staged(0, 1))
    run = apply(run, Committed(unvalidated(1)), Committed(again))
    step_through(run, (validated(1), Running, [StartValidation(again)]))


def test_an_impossible_event_is_refused_with_the_event_and_the_phase() -> None:
    with pytest.raises(InvalidTransition, match=r"CheckpointVerified\(attempt=1, seq=1\) in Running\("):
        step(running(1), CheckpointVerified(1, 1))


def hung(action: str, *, retriable: bool = True) -> HangSuspected:
    failure = WorkerFailure(1, "hang", "rank 1 has stood at train.py:41 for 45 s", retriable=retriable)
    return HangSuspected(1, failure, action)


def test_a_hang_warning_changes_nothing_but_the_recorded_hang():
    run = step_through(running(2), (hung("warn"), Running, []))
    assert run.phase.hang == "rank 1 has stood at train.py:41 for 45 s"
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


def test_workers_that_do_not_exit_by_themselves_are_killed_once_and_the_run_is_complete() -> None:
    run, commands = step(running(), returned(0, 0), 5.0)
    run, commands = step(run, returned(1, 0), 5.0)
    assert commands == [StopWorkers(1, kill=False)]
    assert next_deadline(run) == 5.0 + run.exit_grace_s + EXIT_DELAY_NOTICE_S
    run, commands = step(run, ExitDelayed(1, 0, "thread 'prefetch'", 10.0), 15.0)
    assert (dict(run.phase.delayed_exits.items()), commands) == ({0: "thread 'prefetch'"}, [])
    assert step(run, ExitDelayed(1, 0, "again", 10.0), 15.5) == (run, [])
    run, commands = step(run, DeadlinePassed(1), 16.0)
    assert commands == [StopWorkers(1, kill=True)]
    assert next_deadline(run) is None
    run, commands = step(run, WorkersStopped(1), 16.1)
    assert (run.phase.ending, commands) == ("complete", [])


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
