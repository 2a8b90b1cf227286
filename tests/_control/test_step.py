"""Examples of every road through `step`: what happened, where the run is then, and what it asks for.

Each test is a table to be read from top to bottom. `properties/test_step.py` plays the same function against a
disorderly engine; here one can see what it does.
"""

import pytest
from msgspec import Raw

from paceline._control.commands import (
    AnnounceCommit,
    AnnounceRefusal,
    Command,
    CommitCheckpoint,
    DeleteCheckpoint,
    HoldWorkers,
    StartWorkers,
    StopWorkers,
    StopWorkersAt,
    VerifyCheckpoint,
)
from paceline._control.events import (
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
    Retention,
    StopRequested,
    WorkersStopped,
)
from paceline._control.policy import first_failure, may_retry
from paceline._control.run import Finished, Phase, Restoring, Run, Running, Stopping, Unopened
from paceline._control.step import ECHO_GRACE_S, STOP_GRACE_S, InvalidTransition, deadline, step
from paceline._engine.messages import (
    CheckpointRecord,
    CheckpointStaged,
    Failure,
    FileEntry,
    Reported,
    Staged,
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
        (failed(0, attempt=2), Stopping, [StopWorkers(2, kill=True)]),
        (WorkersStopped(2), Finished, []),
    )
    assert run.phase == Finished("failed", (failed(0, attempt=2).failure,))


def test_a_budget_of_minus_one_is_never_spent() -> None:
    run = running(1, max_failures=-1)
    for attempt in range(1, 20):
        run = played(
            run,
            (failed(0, attempt=attempt), Stopping, [StopWorkers(attempt, kill=True)]),
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
    assert run.phase == Finished("failed", (echo.failure,))


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
    assert not may_retry(run, [ordinary, hopeless])
    assert may_retry(run, [ordinary, failed(0, at=3.0, retriable=False).failure])


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
