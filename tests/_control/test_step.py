"""Examples of every road through `step`: what happened, where the run is then, and what it asks for.

Each test is a table to be read from top to bottom. `properties/test_step.py` plays the same function against a
disorderly engine; here one can see what it does.
"""

import pytest
from msgspec import Raw
from msgspec.structs import replace

from paceline._control.commands import (
    AnnounceCommit,
    AnnounceRefusal,
    AnnounceValidation,
    Command,
    CommitCheckpoint,
    DeleteCheckpoint,
    HoldWorkers,
    StartValidation,
    StartWorkers,
    StopWorkers,
    StopWorkersAt,
    VerifyCheckpoint,
)
from paceline._control.events import (
    CapacityChanged,
    CheckpointBroken,
    CheckpointsFound,
    CheckpointVerified,
    CommitFailed,
    Committed,
    DeadlinePassed,
    DriverStarted,
    Event,
    HangPassed,
    HangSuspected,
    ResizeDue,
    Retention,
    StopRequested,
    ValidationEnded,
    WorkersStopped,
)
from paceline._control.policy import ENGINE_FAILURES_IN_PLACE, GiveUp, Retry, decided, first_failure
from paceline._control.run import (
    Finished,
    Phase,
    Preemption,
    Restoring,
    Run,
    Running,
    Stopping,
    Unopened,
    Validating,
    Waiting,
)
from paceline._control.step import ECHO_GRACE_S, STOP_GRACE_S, InvalidTransition, deadline, resize_due, step
from paceline._core.cursor import Ahead, Cursor
from paceline._engine.messages import (
    CheckpointRecord,
    CheckpointStaged,
    Failure,
    FileEntry,
    PreemptionTold,
    Reported,
    Staged,
    ValidationTask,
    WorkerFailed,
    WorkerHeld,
    WorkerReady,
    WorkerReturned,
)

Line = tuple[Event, type[Phase], list[Command]]


def played(run: Run, *table: Line) -> Run:
    """Play a table and hold every line of it to its word."""
    for number, (event, phase, commands) in enumerate(table):
        run, asked = step(run, event)
        assert asked == commands, f"line {number}: {event}"
        assert isinstance(run.phase, phase), f"line {number}: {event}"
    return run


def heard(run: Run, *story: Event) -> Run:
    """Play events of which only the end matters."""
    for event in story:
        run, _ = step(run, event)
    return run


def reported(rank: int, seq: int, *, files: bool = False, attempt: int = 1, loss: float = 0.5) -> Reported:
    name = f"checkpoint_{seq:06d}" if files else None
    metrics = Raw(b'{"loss":%g,"rank":%d}' % (loss, rank))
    return Reported(attempt, rank, seq, metrics, 0.0, f"train.py:{10 * seq + rank} in train_fn", name)


def part(rank: int) -> Staged:
    return Staged(rank, (FileEntry(f"rank_{rank}.bin", 5, "abc"),))


def staged(rank: int, seq: int, *, attempt: int = 1) -> CheckpointStaged:
    return CheckpointStaged(attempt, seq, part(rank))


def record(
    seq: int, *, attempt: int = 1, num_parts: int = 1, loss: float = 0.5, name: str | None = None
) -> CheckpointRecord:
    metrics = Raw(b'{"loss":%g,"rank":0}' % loss)
    return CheckpointRecord(seq, name or f"checkpoint_{seq:06d}", attempt, metrics, 5 * num_parts)


def failed(rank: int, *, attempt: int = 1, **about: object) -> WorkerFailed:
    values = {"kind": "user", "message": f"ValueError: rank {rank}", "at": 1.0, **about}
    return WorkerFailed(attempt, rank, Failure(rank, **values))


def returned(rank: int, num_reports: int, *, attempt: int = 1, stopped: bool = False) -> WorkerReturned:
    return WorkerReturned(attempt, rank, num_reports, f"train.py:{90 + rank} in train_fn", stopped)


def running(size: int = 2, *, max_failures: int = 0, retention: Retention | None = None) -> Run:
    return heard(Run(), DriverStarted(size, max_failures, retention or Retention()))


def with_commits(run: Run, *seqs: int, loss: dict[int, float] | None = None) -> Run:
    """A run of one rank that has committed these."""
    for seq in seqs:
        about = {"loss": (loss or {}).get(seq, 0.5)}
        run = heard(run, reported(0, seq, files=True, **about), staged(0, seq), Committed(record(seq, **about)))
    return run


# The ordinary life


def test_a_run_starts_commits_and_ends() -> None:
    both = record(1, num_parts=2)
    run = played(
        Run(),
        (DriverStarted(2, 0), Running, [StartWorkers(1, 2, None)]),
        (WorkerReady(1, 0, 100), Running, []),
        (WorkerReady(1, 1, 101), Running, []),
        (reported(0, 1, files=True), Running, []),
        (staged(0, 1), Running, []),
        (reported(1, 1, files=True), Running, []),
        (staged(1, 1), Running, [CommitCheckpoint(both, (part(0), part(1)))]),
        (Committed(both), Running, [AnnounceCommit(1, both)]),
        (returned(0, 1), Running, []),
        (returned(1, 1), Stopping, [StopWorkers(1, kill=False)]),
        (WorkersStopped(1), Finished, []),
    )
    assert run.phase == Finished("complete")
    assert run.latest == both
    assert run.num_reports == 1


def test_a_checkpoint_waits_for_ranks_that_bring_no_files() -> None:
    played(
        running(3),
        (reported(1, 1, files=True), Running, []),
        (staged(1, 1), Running, []),
        (reported(2, 1), Running, []),
        (reported(0, 1), Running, [CommitCheckpoint(record(1), (part(1),))]),
    )


def test_a_checkpoint_carries_the_metrics_of_rank_0_whoever_comes_first() -> None:
    for order in ((0, 1), (1, 0)):
        run = running(2)
        for rank in order:
            run, _ = step(run, reported(rank, 1, files=rank == 1, loss=rank))
        _, [commit] = step(run, staged(1, 1))
        assert isinstance(commit, CommitCheckpoint)
        assert commit.record.metrics == Raw(b'{"loss":0,"rank":0}')


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
        ahead = Ahead(row=16, leads=((24, "2"),), chunk=8, world=2)
        assert records[1].data == (("train", Cursor(row=16, chunk=8, world=2, ahead=ahead)),)


def test_places_in_datasets_that_no_checkpoint_will_need_are_forgotten() -> None:
    run = running(2)
    for seq in range(1, 50):
        for rank in (0, 1):
            run, _ = step(run, replace(reported(rank, seq), data=(("train", Cursor(row=seq)),)))
    assert isinstance(run.phase, Running)
    assert len(run.phase.positions) <= 2


def test_commits_are_asked_in_the_order_of_reports_though_a_later_one_is_staged_first() -> None:
    played(
        running(1),
        (reported(0, 1, files=True), Running, []),
        (reported(0, 2, files=True), Running, []),
        (staged(0, 2), Running, []),
        (
            staged(0, 1),
            Running,
            [CommitCheckpoint(record(1), (part(0),)), CommitCheckpoint(record(2), (part(0),))],
        ),
    )


def test_what_is_said_twice_counts_once() -> None:
    run = heard(running(2), reported(0, 1, files=True), staged(0, 1))
    for again in (reported(0, 1, files=True), staged(0, 1)):
        assert step(run, again) == (run, [])


def test_only_the_last_few_checkpoints_stay() -> None:
    run = with_commits(running(1, retention=Retention(num_to_keep=2)), 1, 2)
    run = played(
        heard(run, reported(0, 3, files=True), staged(0, 3)),
        (Committed(record(3)), Running, [AnnounceCommit(1, record(3), (1,)), DeleteCheckpoint(record(1))]),
    )
    assert run.checkpoints == (record(2), record(3))


def test_the_best_and_the_newest_checkpoint_stay() -> None:
    loss = {1: 0.1, 2: 0.4, 3: 0.3}
    run = running(1, retention=Retention(1, "loss", "min"))
    run = with_commits(run, 1, 2, 3, loss=loss)
    assert [kept.seq for kept in run.checkpoints] == [1, 3]


def test_a_name_that_is_used_again_stands_for_the_newer_checkpoint() -> None:
    first, second = record(1, name="best"), record(2, name="best")
    run = heard(running(1), reported(0, 1, files=True), staged(0, 1), Committed(first))
    run = heard(run, reported(0, 2, files=True), staged(0, 2))
    run = played(run, (Committed(second), Running, [AnnounceCommit(1, second, (1,))]))
    assert run.checkpoints == (second,)


def test_a_refused_commit_is_told_and_the_run_goes_on() -> None:
    run = heard(running(1), reported(0, 1, files=True), staged(0, 1))
    run = played(
        run,
        (CommitFailed(1, 1, "disk full"), Running, [AnnounceRefusal(1, 1, "disk full")]),
        (reported(0, 2, files=True), Running, []),
        (staged(0, 2), Running, [CommitCheckpoint(record(2), (part(0),))]),
    )
    assert run.checkpoints == ()


# Failure


def test_a_failed_attempt_is_retried_from_the_latest_checkpoint() -> None:
    run = with_commits(running(1, max_failures=1), 1)
    run = played(
        run,
        (failed(0), Stopping, [StopWorkers(1, kill=True)]),
        (WorkersStopped(1), Restoring, [VerifyCheckpoint(2, record(1))]),
        (CheckpointVerified(2, 1), Running, [StartWorkers(2, 1, record(1))]),
        (reported(0, 2, attempt=2), Running, []),
        (returned(0, 2, attempt=2), Stopping, [StopWorkers(2, kill=False)]),
        (WorkersStopped(2), Finished, []),
    )
    assert run.phase == Finished("complete")


def test_a_spent_budget_ends_the_run() -> None:
    run = played(
        running(1, max_failures=1),
        (failed(0), Stopping, [StopWorkers(1, kill=True)]),
        (WorkersStopped(1), Running, [StartWorkers(2, 1, None)]),
        (failed(0, attempt=2, kind="killed"), Stopping, [StopWorkers(2, kill=True)]),
        (WorkersStopped(2), Finished, []),
    )
    assert run.phase == Finished("failed", (failed(0, attempt=2, kind="killed").failure,), "max_failures=1")


def test_a_budget_of_minus_one_is_never_spent() -> None:
    run = running(1, max_failures=-1)
    for attempt in range(1, 20):
        run = played(
            run,
            (failed(0, attempt=attempt, kind="killed"), Stopping, [StopWorkers(attempt, kill=True)]),
            (WorkersStopped(attempt), Running, [StartWorkers(attempt + 1, 1, None)]),
        )


def test_the_end_waits_for_a_commit_that_the_stop_overtook() -> None:
    run = heard(running(1), reported(0, 1, files=True), staged(0, 1))
    run = played(
        run,
        (returned(0, 1), Stopping, [StopWorkers(1, kill=False)]),
        (WorkersStopped(1), Stopping, []),
        (Committed(record(1)), Finished, [AnnounceCommit(1, record(1))]),
    )
    assert run.latest == record(1)


def test_a_retry_waits_for_a_commit_and_resumes_from_it() -> None:
    run = heard(running(1, max_failures=1), reported(0, 1, files=True), staged(0, 1), failed(0))
    played(
        run,
        (WorkersStopped(1), Stopping, []),
        (Committed(record(1)), Restoring, [AnnounceCommit(1, record(1)), VerifyCheckpoint(2, record(1))]),
    )


def test_what_workers_said_before_they_died_is_still_committed() -> None:
    run = heard(running(2), reported(0, 1, files=True), staged(0, 1))
    played(
        run,
        (failed(0), Stopping, [StopWorkers(1, kill=True)]),
        (reported(1, 1), Stopping, [CommitCheckpoint(record(1), (part(0),))]),
        (WorkersStopped(1), Stopping, []),
        (Committed(record(1)), Finished, [AnnounceCommit(1, record(1))]),
    )


def test_an_older_attempt_is_not_heard() -> None:
    run = heard(running(1, max_failures=1), failed(0), WorkersStopped(1))
    assert run.attempt == 2
    for late in (
        WorkerReady(1, 0, 1),
        reported(0, 9, files=True),
        staged(0, 9),
        Committed(record(9)),
        failed(0),
        returned(0, 0),
        WorkersStopped(1),
        DeadlinePassed(1),
    ):
        assert step(run, late) == (run, [])


def test_the_end_waits_for_a_commit_that_is_then_refused() -> None:
    run = heard(running(1), reported(0, 1, files=True), staged(0, 1), returned(0, 1), WorkersStopped(1))
    assert isinstance(run.phase, Stopping)
    run = played(run, (CommitFailed(1, 1, "disk full"), Finished, [AnnounceRefusal(1, 1, "disk full")]))
    assert run.phase == Finished("complete")


def test_an_echo_waits_for_the_news_of_the_death_behind_it() -> None:
    echo, cause = failed(0, at=1.0, collateral=True), failed(2, at=2.0)
    run = played(running(3), (echo, Running, []), (cause, Stopping, [StopWorkers(1, kill=True)]))
    assert isinstance(run.phase, Stopping)
    assert run.phase.failures == (echo.failure, cause.failure)


def test_an_echo_that_nothing_follows_ends_the_attempt_after_a_while() -> None:
    echo = failed(0, collateral=True)
    run, _ = step(running(2), echo, 100.0)
    assert deadline(run) == 100.0 + ECHO_GRACE_S
    run = played(run, (DeadlinePassed(1), Stopping, [StopWorkers(1, kill=True)]), (WorkersStopped(1), Finished, []))
    assert run.phase == Finished("failed", (echo.failure,), "max_failures=0")


def test_an_echo_is_not_waited_on_when_nobody_is_left_to_explain_it() -> None:
    echo = failed(0, collateral=True)
    played(
        running(2),
        (returned(1, 0), Running, []),
        (echo, Stopping, [StopWorkers(1, kill=True)]),
    )


def test_the_first_failure_in_time_is_the_cause_whichever_is_heard_first() -> None:
    echo = failed(0, at=9.0, message="RuntimeError: connection closed by peer")
    cause = failed(2, at=3.0, message="ValueError: loss is nan")
    for story in ((echo, cause), (cause, echo)):
        run = heard(running(3), *story, WorkersStopped(1))
        assert isinstance(run.phase, Finished)
        assert first_failure(run.phase.failures) == cause.failure


def test_an_echo_is_not_the_cause_though_its_clock_says_so() -> None:
    echo = failed(0, at=1.0, collateral=True).failure
    cause = failed(1, at=2.0).failure
    assert first_failure([echo, cause]) == cause
    assert first_failure([echo]) == echo


def test_of_failures_at_one_time_the_lowest_rank_is_the_cause() -> None:
    assert first_failure([failed(2).failure, failed(1).failure]).rank == 1


def test_whether_to_retry_is_decided_by_the_cause_alone() -> None:
    hopeless = failed(0, at=1.0, retriable=False).failure
    ordinary = failed(1, at=2.0).failure
    run = running(2, max_failures=5)
    assert isinstance(decided(run, [ordinary, hopeless], "here"), GiveUp)
    assert decided(run, [ordinary, failed(0, at=3.0, retriable=False).failure], "here") == Retry("failures")


def test_the_same_exception_at_the_same_place_twice_is_not_tried_a_third_time() -> None:
    run = heard(running(1, max_failures=9), reported(0, 1), failed(0), WorkersStopped(1))
    assert isinstance(run.phase, Running)
    run = heard(run, reported(0, 1, attempt=2), failed(0, attempt=2), WorkersStopped(2))
    assert isinstance(run.phase, Finished)
    assert "deterministic" in run.phase.reason


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
    run = heard(running(1, max_failures=9), failed(0, **second), WorkersStopped(1))
    run = heard(run, failed(0, attempt=2), WorkersStopped(2))
    run = heard(run, failed(0, attempt=3, **second), WorkersStopped(3))
    run = heard(run, failed(0, attempt=4), WorkersStopped(4))
    assert isinstance(run.phase, Running)


def test_a_bug_is_the_same_whichever_rank_comes_to_it_first() -> None:
    run = heard(running(2, max_failures=9), failed(0, message="KeyError: 7"), WorkersStopped(1))
    run = heard(run, failed(1, attempt=2, message="KeyError: 8"), WorkersStopped(2))
    assert isinstance(run.phase, Finished)
    assert "deterministic" in run.phase.reason


def test_the_same_exception_a_report_later_is_another_place() -> None:
    run = heard(running(1, max_failures=9), failed(0), WorkersStopped(1))
    run = heard(run, reported(0, 1, attempt=2), failed(0, attempt=2), WorkersStopped(2))
    assert isinstance(run.phase, Running)


def test_each_class_of_failure_has_a_budget_of_its_own() -> None:
    run = heard(Run(), DriverStarted(1, 1, max_preemption_failures=1, controller_failure_limit=1))
    kinds = ["killed", "preempted", "engine"]
    for attempt, kind in enumerate(kinds, start=1):
        run = heard(run, reported(0, 1, attempt=attempt), failed(0, attempt=attempt, kind=kind))
        run = heard(run, WorkersStopped(attempt))
        assert isinstance(run.phase, Running), kind
    for kind, limit in (
        ("user", "max_failures=1"),
        ("preempted", "max_preemption_failures=1"),
        ("engine", "controller_failure_limit=1"),
    ):
        ended = heard(run, reported(0, 1, attempt=4), failed(0, attempt=4, kind=kind), WorkersStopped(4))
        assert isinstance(ended.phase, Finished)
        assert ended.phase.reason == limit


def test_an_engine_that_never_gets_to_a_report_is_given_up_on_whatever_its_budget() -> None:
    run = running(1)
    for attempt in range(1, ENGINE_FAILURES_IN_PLACE + 1):
        assert isinstance(run.phase, Running)
        run = heard(run, failed(0, attempt=attempt, kind="engine"), WorkersStopped(attempt))
    assert isinstance(run.phase, Finished)
    assert "without a report" in run.phase.reason


def test_an_engine_that_gets_to_a_report_each_time_is_not_given_up_on() -> None:
    run = running(1)
    for attempt in range(1, 2 * ENGINE_FAILURES_IN_PLACE):
        run = heard(run, reported(0, 1, attempt=attempt), failed(0, attempt=attempt, kind="engine"))
        run = heard(run, WorkersStopped(attempt))
        assert isinstance(run.phase, Running)


# Preemption


def preempted_at(run: Run, now: float, grace_s: float, **about: object) -> tuple[Run, list[Command]]:
    return step(run, PreemptionTold(run.attempt, grace_s, **about), now)


def test_all_ranks_stop_at_one_report_before_the_machine_goes() -> None:
    run, commands = preempted_at(heard(running(2), reported(0, 1)), 100.0, 30.0, ranks=(1,))
    assert commands == [HoldWorkers(1)]
    assert deadline(run) == 130.0
    run = played(
        run,
        (WorkerHeld(1, 0, 1), Running, []),
        (WorkerHeld(1, 1, 0), Running, [StopWorkersAt(1, 2)]),
        (returned(0, 2, stopped=True), Running, []),
        (returned(1, 2, stopped=True), Stopping, [StopWorkers(1, kill=False)]),
        (WorkersStopped(1), Finished, []),
    )
    assert run.phase == Finished("preempted")


def test_code_that_looks_for_the_notice_gets_a_whole_step_in_which_all_ranks_see_it() -> None:
    run, _ = preempted_at(running(2), 0.0, 30.0)
    _, commands = step(heard(run, WorkerHeld(1, 0, 4, asks=True)), WorkerHeld(1, 1, 3))
    assert commands == [StopWorkersAt(1, 6, True, Preemption((), 30.0))]


@pytest.mark.parametrize(("grace_s", "save"), [(40.0, True), (20.0, False)])
def test_no_checkpoint_is_begun_that_the_last_one_says_would_not_be_finished(grace_s: float, save: bool) -> None:
    run, _ = step(running(1), reported(0, 1, files=True), 0.0)
    run, _ = step(run, staged(0, 1), 10.0)
    run, _ = step(run, Committed(record(1)), 20.0)
    assert run.last_save_s == 20.0
    run, _ = preempted_at(run, 50.0, grace_s)
    _, commands = step(run, WorkerHeld(1, 0, 1), 50.0)
    assert commands == [StopWorkersAt(1, 2, save)]


def test_ranks_that_do_not_come_to_the_report_in_time_are_ended_and_the_run_is_preempted() -> None:
    run, _ = preempted_at(running(1), 0.0, 5.0)
    run = heard(run, WorkerHeld(1, 0, 0), DeadlinePassed(1), WorkersStopped(1))
    assert run.phase == Finished("preempted")


def test_where_only_some_machines_go_the_run_goes_on_without_charge_to_max_failures() -> None:
    run = heard(Run(), DriverStarted(1, 0, max_preemption_failures=1))
    for attempt in (1, 2):
        run, _ = preempted_at(run, 0.0, 5.0, ranks=(0,), whole=False)
        run = heard(run, WorkerHeld(attempt, 0, 0), returned(0, 1, attempt=attempt, stopped=True))
        run = heard(run, WorkersStopped(attempt))
        if attempt == 1:
            assert isinstance(run.phase, Running)
            assert run.num_failures == 0
    assert run.phase == Finished("preempted")


def test_a_stop_requested_while_ranks_come_to_their_last_report_leaves_no_further_attempt() -> None:
    run = heard(running(1), PreemptionTold(1, 5.0, (0,), whole=False), StopRequested(1), WorkerHeld(1, 0, 0))
    assert step(run, StopRequested(1)) == (run, [])
    run = heard(run, returned(0, 1, stopped=True), WorkersStopped(1))
    assert run.phase == Finished("preempted")


def test_a_second_notice_moves_the_deadline_forward_only() -> None:
    run, _ = preempted_at(running(2), 0.0, 30.0, ranks=(1,))
    run, commands = preempted_at(run, 1.0, 100.0, ranks=(0,))
    assert commands == []
    assert deadline(run) == 30.0
    run, _ = preempted_at(run, 2.0, 5.0)
    assert deadline(run) == 7.0
    assert isinstance(run.phase, Running)
    assert run.phase.preemption == Preemption((0, 1), 7.0)


@pytest.mark.parametrize(("kind", "ending"), [("killed", "preempted"), ("user", "failed")])
def test_workers_that_die_with_the_machine_are_preempted_but_a_bug_stays_a_bug(kind: str, ending: str) -> None:
    run, _ = preempted_at(running(1, max_failures=5), 0.0, 5.0)
    run = heard(run, failed(0, kind=kind), WorkersStopped(1))
    assert isinstance(run.phase, Finished)
    assert run.phase.ending == ending


@pytest.mark.parametrize(("rank", "kind", "goes_on"), [(1, "killed", True), (0, "killed", False), (1, "user", False)])
def test_a_worker_that_dies_on_a_machine_that_goes_is_not_charged_to_max_failures(
    rank: int, kind: str, goes_on: bool
) -> None:
    run = heard(running(2), PreemptionTold(1, 5.0, (1,), whole=False), failed(rank, kind=kind), WorkersStopped(1))
    assert isinstance(run.phase, Running if goes_on else Finished)
    assert run.num_preemptions == goes_on


def test_a_notice_while_workers_end_or_a_checkpoint_is_checked_leaves_no_further_attempt() -> None:
    run = heard(with_commits(running(1, max_failures=5), 1), failed(0, kind="killed"))
    assert heard(run, PreemptionTold(1, 5.0), WorkersStopped(1)).phase.ending == "preempted"
    run = heard(run, WorkersStopped(1))
    assert isinstance(run.phase, Restoring)
    assert heard(run, PreemptionTold(2, 5.0)).phase == Finished("preempted")


def test_a_notice_of_some_machines_does_not_end_a_run_that_has_no_workers_on_them() -> None:
    run = heard(with_commits(running(1, max_failures=5), 1), failed(0, kind="killed"), WorkersStopped(1))
    assert isinstance(run.phase, Restoring)
    assert step(run, PreemptionTold(2, 5.0, whole=False)) == (run, [])
    run = heard(Run(), DriverStarted(1, 0, num_places=0))
    assert isinstance(run.phase, Waiting)
    assert step(run, PreemptionTold(1, 5.0, whole=False)) == (run, [])


# More workers and fewer


def elastic(*sizes: int, places: int | None = None, **about: object) -> Run:
    run = heard(Run(), DriverStarted(sizes[-1], 0, sizes=sizes, **about))
    return heard(run, CapacityChanged(1, places)) if places is not None else run


def test_a_lost_place_costs_no_failure_and_the_run_goes_on_with_fewer() -> None:
    run = with_commits_of(elastic(1, 2), 1)
    run = played(
        run,
        (failed(1, kind="killed"), Stopping, [StopWorkers(1, kill=True)]),
        (CapacityChanged(1, 1), Stopping, []),
        (WorkersStopped(1), Restoring, [VerifyCheckpoint(2, record(1, num_parts=2))]),
        (CheckpointVerified(2, 1), Running, [StartWorkers(2, 1, record(1, num_parts=2))]),
    )
    assert (run.size, run.num_failures) == (1, 0)


def test_a_lost_place_costs_nothing_when_it_was_foretold_either() -> None:
    run = elastic(1, 2, max_preemption_failures=0)
    run = heard(run, PreemptionTold(1, 5.0, (1,), whole=False), WorkerHeld(1, 0, 0), WorkerHeld(1, 1, 0))
    run = heard(run, returned(0, 1, stopped=True), returned(1, 1, stopped=True), CapacityChanged(1, 1))
    run = played(run, (WorkersStopped(1), Running, [StartWorkers(2, 1, None)]))
    assert run.num_preemptions == 0


def test_a_bug_is_charged_though_a_place_was_lost_too() -> None:
    run = heard(elastic(1, 2), failed(1), CapacityChanged(1, 1), WorkersStopped(1))
    assert isinstance(run.phase, Finished)


def test_workers_join_at_the_next_commit() -> None:
    run = heard(elastic(1, 2), failed(1, kind="killed"), CapacityChanged(1, 1), WorkersStopped(1))
    assert run.size == 1
    run = played(
        run,
        (reported(0, 1, files=True, attempt=2), Running, []),
        (CapacityChanged(2, 2), Running, []),
        (ResizeDue(2), Running, []),
        (staged(0, 1, attempt=2), Running, [CommitCheckpoint(record(1, attempt=2), (part(0),))]),
        (
            Committed(record(1, attempt=2)),
            Stopping,
            [AnnounceCommit(2, record(1, attempt=2)), StopWorkers(2, kill=True)],
        ),
        (WorkersStopped(2), Restoring, [VerifyCheckpoint(3, record(1, attempt=2))]),
        (CheckpointVerified(3, 1), Running, [StartWorkers(3, 2, record(1, attempt=2))]),
    )
    assert (run.size, run.num_failures) == (2, 0)


def test_a_run_is_not_resized_more_often_than_asked_for() -> None:
    run = elastic(1, 2, resize_every_s=60.0)
    run = heard(run, failed(1, kind="killed"), CapacityChanged(1, 1))
    run, _ = step(run, WorkersStopped(1), 100.0)
    assert resize_due(run) is None
    run, _ = step(run, CapacityChanged(2, 2), 110.0)
    assert resize_due(run) == 160.0
    for seq, now, phase in ((1, 130.0, Running), (2, 161.0, Stopping)):
        if now > 160.0:
            run = heard(run, ResizeDue(2))
            assert resize_due(run) is None
        run = heard(run, reported(0, seq, files=True, attempt=2), staged(0, seq, attempt=2))
        run, _ = step(run, Committed(record(seq, attempt=2)), now)
        assert isinstance(run.phase, phase)


def test_a_run_that_grew_is_replayed_alike_by_one_who_does_not_know_when() -> None:
    """Else its next driver would find workers stopped that, as far as it knows, still ran."""
    story: list[tuple[Event, float]] = [
        (DriverStarted(2, 0, sizes=(1, 2), num_places=1, resize_every_s=60.0), 100.0),
        (CapacityChanged(1, 2), 110.0),
        (reported(0, 1, files=True), 120.0),
        (staged(0, 1), 121.0),
        (ResizeDue(1), 160.0),
        (Committed(record(1)), 161.0),
        (WorkersStopped(1), 162.0),
    ]
    run = Run()
    for event, now in story:
        run, _ = step(run, event, now)
    again = heard(Run(), *(event for event, _ in story))
    for lived in (run, again):
        assert lived.phase == Restoring(record(1))
        assert lived.attempt == 2


def test_workers_do_not_join_where_the_run_is_about_to_stop() -> None:
    run = heard(Run(), DriverStarted(2, 0, sizes=(1, 2), num_places=1), CapacityChanged(1, 2), ResizeDue(1))
    run = heard(run, StopRequested(1), WorkerHeld(1, 0, 0), reported(0, 1, files=True), staged(0, 1))
    played(run, (Committed(record(1)), Running, [AnnounceCommit(1, record(1))]))


def test_workers_do_not_join_when_the_room_is_gone_again_by_the_commit() -> None:
    run = heard(Run(), DriverStarted(2, 0, sizes=(1, 2), num_places=1), CapacityChanged(1, 2), ResizeDue(1))
    run = heard(run, CapacityChanged(1, 1), reported(0, 1, files=True), staged(0, 1), Committed(record(1)))
    assert isinstance(run.phase, Running)


def test_with_no_room_for_the_fewest_the_run_waits_until_there_is() -> None:
    run = heard(elastic(2, 4), failed(1, kind="killed"), CapacityChanged(1, 1), WorkersStopped(1))
    assert isinstance(run.phase, Waiting)
    assert heard(run, StopRequested(2)).phase == Finished("interrupted")
    run = played(run, (CapacityChanged(2, 3), Running, [StartWorkers(2, 2, None)]))
    assert run.size == 2


def test_only_sizes_that_are_allowed_are_used() -> None:
    run = heard(elastic(1, 2, 4), failed(1, kind="killed"), CapacityChanged(1, 3), WorkersStopped(1))
    assert run.size == 2


def with_commits_of(run: Run, seq: int) -> Run:
    """A run of two ranks that has committed this."""
    for rank in (0, 1):
        run = heard(run, reported(rank, seq, files=True), staged(rank, seq))
    return heard(run, Committed(record(seq, num_parts=2)))


# Ranks that report different numbers of times


def mismatch_of(run: Run) -> Failure:
    run = heard(run, WorkersStopped(run.attempt))
    assert isinstance(run.phase, Finished)
    assert run.phase.ending == "failed"
    [failure] = run.phase.failures
    assert failure.kind == "mismatch"
    assert not failure.retriable
    return failure


def test_a_checkpoint_that_a_returned_rank_never_comes_to_fails_the_run_with_both_places() -> None:
    run = played(
        running(2, max_failures=3),
        (reported(0, 1), Running, []),
        (returned(0, 1), Running, []),
        (reported(1, 1), Running, []),
        (reported(1, 2, files=True), Stopping, [StopWorkers(1, kill=True)]),
    )
    failure = mismatch_of(run)
    assert failure.message == (
        "ReportMismatchError: rank 1 waits for every rank in report 2 with a checkpoint, called at "
        "train.py:21 in train_fn, but rank 0 returned after 1 reports; the last at train.py:90 in train_fn"
    )
    assert failure.frames == ("train.py:21 in train_fn",)


def test_the_mismatch_is_the_same_when_the_rank_that_waits_came_first() -> None:
    run = played(
        running(2, max_failures=3),
        (reported(1, 1, files=True), Running, []),
        (returned(0, 0), Stopping, [StopWorkers(1, kill=True)]),
    )
    assert "train.py:11" in mismatch_of(run).message
    assert "train.py:90" in mismatch_of(run).message


def test_the_mismatch_is_the_same_when_the_rank_with_fewer_reports_returns_last() -> None:
    run = played(
        running(2),
        (reported(1, 1, files=True), Running, []),
        (returned(1, 1), Running, []),
        (returned(0, 0), Stopping, [StopWorkers(1, kill=True)]),
    )
    assert "rank 0 returned after 0 reports" in mismatch_of(run).message


def test_ranks_may_report_metrics_a_different_number_of_times() -> None:
    run = heard(running(2), reported(1, 1), reported(1, 2), returned(0, 0), returned(1, 2), WorkersStopped(1))
    assert run.phase == Finished("complete")


# Interruption


def test_a_stop_lets_all_ranks_end_at_one_report() -> None:
    run = played(
        heard(running(2), reported(0, 1), reported(1, 1), reported(1, 2)),
        (StopRequested(1), Running, [HoldWorkers(1)]),
        (StopRequested(1), Running, []),
        (WorkerHeld(1, 1, 2), Running, []),
        (WorkerHeld(1, 0, 1), Running, [StopWorkersAt(1, 3)]),
        (reported(0, 2), Running, []),
        (reported(0, 3, files=True), Running, []),
        (reported(1, 3), Running, []),
        (staged(0, 3), Running, [CommitCheckpoint(record(3), (part(0),))]),
        (returned(0, 3, stopped=True), Running, []),
        (returned(1, 3, stopped=True), Stopping, [StopWorkers(1, kill=False)]),
        (Committed(record(3)), Stopping, [AnnounceCommit(1, record(3))]),
        (WorkersStopped(1), Finished, []),
    )
    assert run.phase == Finished("interrupted")


def test_a_rank_that_returns_meanwhile_is_not_waited_for() -> None:
    played(
        running(3),
        (StopRequested(1), Running, [HoldWorkers(1)]),
        (WorkerHeld(1, 0, 7), Running, []),
        (WorkerHeld(1, 1, 4), Running, []),
        (returned(0, 7), Running, []),
        (returned(2, 4), Running, [StopWorkersAt(1, 5)]),
    )


def test_a_rank_that_was_stopped_is_not_one_that_reports_less_often() -> None:
    """Rank 0 had come further and is done; what it announced there is given up, not taken for a mistake."""
    run = heard(running(2), reported(0, 1), reported(0, 2, files=True), returned(0, 2))
    run = played(
        run,
        (StopRequested(1), Running, [HoldWorkers(1)]),
        (WorkerHeld(1, 1, 0), Running, [StopWorkersAt(1, 1)]),
        (reported(1, 1), Running, []),
        (returned(1, 1, stopped=True), Stopping, [StopWorkers(1, kill=False)]),
        (WorkersStopped(1), Finished, []),
    )
    assert run.phase == Finished("interrupted")


def test_ranks_that_do_not_follow_to_the_stop_are_ended_after_a_while() -> None:
    run = heard(running(2), StopRequested(1), WorkerHeld(1, 0, 0), WorkerHeld(1, 1, 0), reported(0, 1))
    assert deadline(run) is None
    run, _ = step(run, returned(0, 1, stopped=True), 100.0)
    assert deadline(run) == 100.0 + STOP_GRACE_S
    run = played(run, (DeadlinePassed(1), Stopping, [StopWorkers(1, kill=True)]), (WorkersStopped(1), Finished, []))
    assert run.phase == Finished("interrupted")
    assert deadline(run) is None


def test_a_stop_at_once_kills_and_can_be_asked_for_again() -> None:
    run = played(
        running(1, max_failures=3),
        (StopRequested(1, now=True), Stopping, [StopWorkers(1, kill=True)]),
        (failed(0), Stopping, []),
        (StopRequested(1, now=True), Stopping, [StopWorkers(1, kill=True)]),
        (WorkersStopped(1), Finished, []),
    )
    assert run.phase == Finished("interrupted")


@pytest.mark.parametrize("at_once", [False, True])
def test_a_stop_requested_while_workers_end_prevents_the_retry(at_once: bool) -> None:
    run = heard(running(1, max_failures=3), failed(0), StopRequested(1, at_once), WorkersStopped(1))
    assert run.phase == Finished("failed", (failed(0).failure,))


def test_a_stop_while_a_checkpoint_is_verified_ends_the_run() -> None:
    run = heard(with_commits(running(1, max_failures=1), 1), failed(0), WorkersStopped(1))
    run = played(run, (StopRequested(2), Finished, []), (CheckpointVerified(2, 1), Finished, []))
    assert run.phase == Finished("interrupted")


# Validation

TASK = ValidationTask(Raw(b'{"split":"test"}'), 60.0)


def asked(rank: int, seq: int, *, task: ValidationTask = TASK, attempt: int = 1) -> Reported:
    return replace(reported(rank, seq, files=True, attempt=attempt), validation=task)


def unvalidated(seq: int, *, attempt: int = 1, num_parts: int = 1) -> CheckpointRecord:
    return replace(record(seq, attempt=attempt, num_parts=num_parts), validation=TASK, status="PENDING_VALIDATION")


def validated(seq: int, found: bytes = b'{"accuracy":0.5}', *, attempt: int = 1) -> ValidationEnded:
    return ValidationEnded(attempt, seq, f"checkpoint_{seq:06d}", "VALIDATED", Raw(found))


def score(seq: int, accuracy: float) -> CheckpointRecord:
    """The record after its validation found this."""
    return replace(unvalidated(seq), status="VALIDATED", metrics=Raw(b'{"loss":0.5,"rank":0,"accuracy":%g}' % accuracy))


def validating(*seqs: int, size: int = 1, retention: Retention | None = None, max_failures: int = 0) -> Run:
    """A run of one rank that has committed these, each to be validated."""
    run = heard(Run(), DriverStarted(size, max_failures, retention or Retention(), validates=True))
    for seq in seqs:
        run = heard(run, asked(0, seq), staged(0, seq), Committed(unvalidated(seq)))
    return run


def test_validations_are_made_one_after_the_other_in_the_order_of_commits() -> None:
    played(
        Run(),
        (DriverStarted(1, 0, validates=True), Running, [StartWorkers(1, 1, None)]),
        (asked(0, 1), Running, []),
        (staged(0, 1), Running, [CommitCheckpoint(unvalidated(1), (part(0),))]),
        (
            Committed(unvalidated(1)),
            Running,
            [AnnounceCommit(1, unvalidated(1)), StartValidation(unvalidated(1))],
        ),
        (asked(0, 2), Running, []),
        (staged(0, 2), Running, [CommitCheckpoint(unvalidated(2), (part(0),))]),
        (Committed(unvalidated(2)), Running, [AnnounceCommit(1, unvalidated(2))]),
        (validated(1), Running, [AnnounceValidation(1, score(1, 0.5)), StartValidation(unvalidated(2))]),
        (validated(2), Running, [AnnounceValidation(1, score(2, 0.5))]),
    )


def test_the_end_waits_for_the_validations_and_no_longer() -> None:
    played(
        validating(1, 2),
        (returned(0, 2), Stopping, [StopWorkers(1, kill=False)]),
        (WorkersStopped(1), Validating, []),
        (DeadlinePassed(1), Validating, []),
        (validated(1), Validating, [StartValidation(unvalidated(2))]),
        (validated(2), Finished, []),
    )


def test_a_metric_of_the_validation_takes_the_place_of_a_reported_one() -> None:
    run = heard(validating(1), validated(1, b'{"loss":0.25,"nested":{"x":{"$number":"nan"}}}'))
    assert bytes(run.checkpoints[0].metrics) == b'{"loss":0.25,"rank":0,"nested":{"x":{"$number":"nan"}}}'


def test_one_that_failed_leaves_the_metrics_as_they_were_and_ranks_by_them() -> None:
    failed = ValidationEnded(1, 1, "checkpoint_000001", "VALIDATION_TIMEOUT", problem="too long")
    run = heard(validating(1, retention=Retention(1, "accuracy")), failed)
    assert run.checkpoints == (replace(unvalidated(1), status="VALIDATION_TIMEOUT"),)


def test_nothing_is_deleted_before_its_validation_has_ended() -> None:
    run = validating(1, 2, 3, retention=Retention(1, "accuracy"))
    assert [c.seq for c in run.checkpoints] == [1, 2, 3]
    run = played(
        run,
        (
            validated(1, b'{"accuracy":1}'),
            Running,
            [AnnounceValidation(1, score(1, 1)), StartValidation(unvalidated(2))],
        ),
        (
            validated(2, b'{"accuracy":0}'),
            Running,
            [
                AnnounceValidation(1, score(2, 0), removed=(2,)),
                DeleteCheckpoint(score(2, 0)),
                StartValidation(unvalidated(3)),
            ],
        ),
        (
            validated(3, b'{"accuracy":2}'),
            Running,
            [AnnounceValidation(1, score(3, 2), removed=(1,)), DeleteCheckpoint(score(1, 1))],
        ),
    )
    assert run.checkpoints == (score(3, 2),)


def test_the_lowest_rank_that_asks_says_how_whoever_is_heard_first() -> None:
    other = ValidationTask(Raw(b'{"split":"dev"}'))
    story = [asked(1, 1), asked(2, 1, task=other), reported(0, 1, files=True)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        run = heard(
            Run(), DriverStarted(3, 0, validates=True), *(story[at] for at in order), staged(0, 1), staged(1, 1)
        )
        _, commands = step(run, staged(2, 1))
        assert [command.record for command in commands] == [unvalidated(1, num_parts=3)]


def test_a_restart_of_the_workers_leaves_the_one_under_way_alone() -> None:
    played(
        validating(1, max_failures=1),
        (failed(0), Stopping, [StopWorkers(1, kill=True)]),
        (WorkersStopped(1), Restoring, [VerifyCheckpoint(2, unvalidated(1))]),
        (validated(1), Restoring, []),
        (CheckpointVerified(2, 1), Running, [StartWorkers(2, 1, score(1, 0.5))]),
    )


def test_nothing_is_deleted_while_the_newest_may_turn_out_to_be_broken() -> None:
    run = validating(1, retention=Retention(1), max_failures=1)
    run = heard(run, reported(0, 2, files=True), staged(0, 2), Committed(record(2)), failed(0), WorkersStopped(1))
    played(
        run,
        (validated(1), Restoring, []),
        (CheckpointBroken(2, 2, "a file is missing"), Restoring, [VerifyCheckpoint(2, score(1, 0.5))]),
        (CheckpointVerified(2, 1), Running, [StartWorkers(2, 1, score(1, 0.5))]),
    )


@pytest.mark.parametrize("end", [[failed(0)], [StopRequested(1, now=True)]])
def test_a_run_that_failed_or_was_stopped_does_not_wait_for_it(end: list[Event]) -> None:
    run = heard(validating(1), *end, WorkersStopped(1))
    assert isinstance(run.phase, Finished)
    played(
        run,
        (validated(1), Finished, []),
        (
            DriverStarted(1, 0, validates=True),
            Restoring,
            [VerifyCheckpoint(2, unvalidated(1)), StartValidation(unvalidated(1))],
        ),
    )


def test_a_run_that_comes_to_its_end_while_it_is_being_stopped_does_not_wait_for_it() -> None:
    run = heard(validating(1), StopRequested(1), WorkerHeld(1, 0, 1), returned(0, 1), WorkersStopped(1))
    assert run.phase == Finished("complete")
    assert run.unvalidated == (unvalidated(1),)


@pytest.mark.parametrize("told", [StopRequested(1), PreemptionTold(1, 30.0)])
def test_an_end_while_only_validations_are_left_leaves_them_to_the_next_driver(told: Event) -> None:
    played(
        validating(1),
        (returned(0, 1), Stopping, [StopWorkers(1, kill=False)]),
        (WorkersStopped(1), Validating, []),
        (told, Finished, []),
        (DriverStarted(1, 0), Finished, []),
        (DriverStarted(1, 0, validates=True), Validating, [StartValidation(unvalidated(1))]),
        (validated(1), Finished, []),
        (DriverStarted(1, 0, validates=True), Finished, []),
    )


@pytest.mark.parametrize("validates", [True, False])
def test_a_driver_lost_while_only_validations_were_left_is_followed_by_one_that_trains_nothing(validates: bool) -> None:
    run = heard(validating(1), returned(0, 1), WorkersStopped(1))
    run, commands = step(run, DriverStarted(1, 0, validates=validates))
    assert commands == ([StartValidation(unvalidated(1))] if validates else [])
    assert run.phase == (Validating() if validates else Finished("complete"))


def test_no_time_outlives_a_driver_that_was_lost_while_only_validations_were_left() -> None:
    run = heard(Run(), DriverStarted(1, 0, validates=True))
    run, _ = step(run, asked(0, 1), now=100.0)
    run, _ = step(heard(run, staged(0, 1)), Committed(unvalidated(1)), now=120.0)
    run = heard(run, returned(0, 1), WorkersStopped(1))
    assert run.last_save_s == 20.0
    assert heard(run, DriverStarted(1, 0, validates=True)).last_save_s is None


def test_what_is_found_out_about_a_checkpoint_that_is_no_more_is_dropped() -> None:
    """Its name was used again while it was being validated."""
    run = validating(1)
    again = replace(record(2, name="checkpoint_000001"), validation=TASK, status="PENDING_VALIDATION")
    run = heard(run, Committed(again))
    played(run, (validated(1), Running, [StartValidation(again)]))


def test_a_validation_that_nobody_waits_for_is_not_heard() -> None:
    run = validating(1, 2)
    for event in (validated(2), validated(1, attempt=2), validated(7)):
        assert step(run, event) == (run, [])


def test_checkpoints_found_on_storage_are_validated_if_that_was_asked_for() -> None:
    played(
        heard(Run(), CheckpointsFound((unvalidated(1), record(2)))),
        (
            DriverStarted(1, 0, validates=True),
            Restoring,
            [VerifyCheckpoint(2, record(2)), StartValidation(unvalidated(1))],
        ),
    )


# Drivers


def test_a_new_driver_takes_over_with_a_new_size_and_a_new_budget() -> None:
    run = with_commits(running(1, max_failures=1), 1)
    run = heard(run, failed(0), WorkersStopped(1), CheckpointVerified(2, 1))
    assert run.num_failures == 1
    run = played(
        run,
        (DriverStarted(3, 1), Restoring, [VerifyCheckpoint(3, record(1))]),
        (CheckpointVerified(3, 1), Running, [StartWorkers(3, 3, record(1))]),
        (failed(0, attempt=3), Stopping, [StopWorkers(3, kill=True)]),
        (WorkersStopped(3), Restoring, [VerifyCheckpoint(4, record(1))]),
    )
    assert run.num_failures == 1


def test_a_broken_checkpoint_gives_way_to_the_one_before_it() -> None:
    run = with_commits(running(1), 1, 2)
    played(
        run,
        (DriverStarted(1, 0), Restoring, [VerifyCheckpoint(2, record(2))]),
        (CheckpointBroken(2, 2, "a file is missing"), Restoring, [VerifyCheckpoint(2, record(1))]),
        (CheckpointBroken(2, 1, "a file is missing"), Running, [StartWorkers(2, 1, None)]),
    )


def test_a_complete_run_is_not_opened_again_but_an_interrupted_one_is() -> None:
    done = heard(running(1), returned(0, 0), WorkersStopped(1))
    assert step(done, DriverStarted(1, 0)) == (done, [])
    stopped = heard(running(1), StopRequested(1, now=True), WorkersStopped(1))
    again = played(stopped, (DriverStarted(1, 0), Running, [StartWorkers(2, 1, None)]))
    assert stopped.stop_requested
    assert not again.stop_requested


def test_checkpoints_found_on_storage_are_resumed_from_though_the_journal_is_gone() -> None:
    run = played(
        Run(),
        (CheckpointsFound((record(4, attempt=2), record(6, attempt=3))), Unopened, []),
        (DriverStarted(1, 0), Restoring, [VerifyCheckpoint(4, record(6, attempt=3))]),
    )
    assert [known.seq for known in run.checkpoints] == [4, 6]
    assert step(run, CheckpointsFound((record(4, attempt=2),))) == (run, [])


def test_a_commit_that_its_driver_did_not_live_to_hear_of_is_found() -> None:
    run = heard(running(1), reported(0, 1, files=True), staged(0, 1))
    assert run.committing == (1,)
    run = heard(run, CheckpointsFound((record(1),)))
    assert run.committing == ()
    assert isinstance(run.phase, Running)
    played(run, (DriverStarted(1, 0), Restoring, [VerifyCheckpoint(2, record(1))]))


def test_a_commit_is_not_done_over_a_newer_one_of_its_name() -> None:
    """Both were in flight; the later one is found, so the earlier was done before it."""
    story = [(1, "best"), (2, "best")]
    run = running(1)
    for seq, name in story:
        run = heard(run, Reported(1, 0, seq, Raw(b"{}"), 0.0, "train.py:1", name), staged(0, seq))
    assert run.committing == (1, 2)
    run = heard(run, CheckpointsFound((record(2, name="best"),)))
    assert run.committing == ()


def test_a_found_checkpoint_takes_the_place_of_an_older_one_of_its_name() -> None:
    run = heard(running(1), reported(0, 1, files=True), staged(0, 1), Committed(record(1, name="best")))
    run = heard(run, CheckpointsFound((record(2, name="best"),)))
    assert run.checkpoints == (record(2, name="best"),)


def test_a_checkpoint_that_is_no_longer_on_storage_is_forgotten() -> None:
    run = heard(with_commits(running(1), 1, 2), CheckpointsFound(missing=(2,)))
    assert run.latest == record(1)


def test_workers_of_an_attempt_that_the_journal_lost_are_not_taken_for_older_ones() -> None:
    """Else their files would be read as reports of an attempt that may have had another size."""
    run = heard(running(1), CheckpointsFound((record(1, attempt=3),)))
    assert run.attempt == 3
    assert isinstance(run.phase, Unopened)


def test_an_event_that_fits_nowhere_tells_itself_and_the_phase() -> None:
    with pytest.raises(InvalidTransition, match=r"CheckpointVerified\(attempt=1, seq=1\) in Running\("):
        step(running(1), CheckpointVerified(1, 1))


def hung(action: str, *, retriable: bool = True) -> HangSuspected:
    failure = Failure(1, "hang", "rank 1 has stood at train.py:41 for 45 s", retriable=retriable)
    return HangSuspected(1, failure, action)


def test_a_hang_that_is_warned_of_changes_nothing_but_what_is_known_of_it():
    run = played(running(2), (hung("warn"), Running, []))
    assert run.phase.hang == "rank 1 has stood at train.py:41 for 45 s"
    assert heard(run, HangPassed(1, 1, 60.0)) == running(2)


@pytest.mark.parametrize(("action", "retriable", "after"), [("restart", True, Running), ("fail", False, Finished)])
def test_a_hang_ends_the_attempt_and_is_retried_only_if_it_may_be(action, retriable, after):
    run = played(
        running(2, max_failures=1),
        (hung(action, retriable=retriable), Stopping, [StopWorkers(1, kill=True)]),
        (hung(action), Stopping, []),
        (HangPassed(1, 1), Stopping, []),
    )
    run = heard(run, WorkersStopped(1))
    assert isinstance(run.phase, after)
    assert run.num_failures == retriable
