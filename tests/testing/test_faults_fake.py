"""Faults on the fake engine: the same value as for processes, at the boundaries between messages."""

import errno

import pytest

from paceline._control.events import CheckpointBroken, CommitFailed, Reported, StopRequested, WorkerFailed
from paceline._control.run import Finished
from paceline._engine.base import WorkerResources
from paceline.testing import PHASES, At, FakeClock, FakeEngine, Faults
from paceline.testing.faults.engine import FaultyEngine
from testing.fake_runs import LAST_CHECKPOINT, STEPS, Stuck, drive, expected, rows, worker
from written_runs import read_events


def assert_all_rows(path):
    assert [rows(path, rank) for rank in (0, 1)] == [expected(0), expected(1)]


@pytest.mark.parametrize(
    ("faults", "first_seqs"),
    [
        (Faults(), [[0]]),
        (Faults().kill(1, at=At("commit", 4, call=3)), [[0, 4]]),
        (Faults().lose_driver(after="Committed", number=2), [[0], [4]]),
        (Faults().lose_all(1, at=("report", 3)), [[0], [2]]),
        *(
            (Faults(seed=3).corrupt("rank_1", how=how, after=2).kill(0, at=("step", 3)), [[0, 0]])
            for how in ("flip", "truncate", "zero")
        ),
    ],
    ids=str,
)
def test_faults_strike_once_and_the_run_goes_on_from_the_last_whole_checkpoint(tmp_path, faults, first_seqs):
    """`first_seqs`: by driver and attempt, the report that workers resumed from."""
    run, engines = drive(tmp_path, faults)
    assert run.phase == Finished("complete")
    assert [[group.workers[0].begin.first_seq for group in engine.groups] for engine in engines] == first_seqs
    assert len(faults.fired(tmp_path)) == len(faults.all)
    assert (tmp_path / "faults.jsonl").exists() == bool(faults.all)
    assert [event.seq for event in read_events(tmp_path, CheckpointBroken)] == ([2] if first_seqs == [[0, 0]] else [])
    for rank in (0, 1):
        assert rows(tmp_path, rank) == expected(rank)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("phase", PHASES)
def test_a_worker_killed_in_any_phase_costs_one_attempt(tmp_path, phase, rank):
    faults = Faults().kill(rank, at=phase)
    if phase == "restore":
        faults = faults.kill(1 - rank, at=("step", 4))
    run, engines = drive(tmp_path, faults)
    assert run.phase == Finished("complete")
    assert faults.unfired(tmp_path) == []
    assert len(engines[0].groups) == 1 + len(faults.all)
    failed = read_events(tmp_path, WorkerFailed)[-1]
    assert (failed.rank, failed.failure.kind) == (rank, "killed")
    for other in (0, 1):
        assert rows(tmp_path, other) == expected(other)


def test_a_driver_lost_after_any_line_is_followed_by_another_that_ends_the_run(tmp_path):
    num_lost = 0
    for line in range(1, 36):
        path = tmp_path / str(line)
        faults = Faults().lose_driver(after=line)
        run, engines = drive(path, faults)
        assert run.phase.ending == "complete"
        assert len(engines) == 1 + len(faults.fired(path))
        num_lost += len(faults.fired(path))
        assert_all_rows(path)
    assert num_lost > 20


def test_kills_drawn_from_a_seed_are_the_same_each_time():
    kills = [Faults(seed=seed).kills(6, num_reports=STEPS) for seed in (0, 0, 1)]
    assert kills[0] == kills[1] != kills[2]


def test_a_worker_out_of_memory_is_reported_as_such(tmp_path):
    drive(tmp_path, Faults().oom(0, at=("step", 2)))
    assert [event.failure.kind for event in read_events(tmp_path, WorkerFailed)] == ["memory"]


def test_a_worker_that_hangs_sends_no_more(tmp_path):
    with pytest.raises(Stuck):
        drive(tmp_path, Faults().hang(1, at=("report", 3)), limit=300)
    assert len(rows(tmp_path, 1)) == 2


def test_a_preempted_machine_stops_the_run_at_one_report_and_a_new_driver_goes_on(tmp_path):
    faults = Faults().preempt(None, deadline_s=1000, at=("report", 2))
    run, _ = drive(tmp_path, faults)
    assert run.phase.ending == "preempted"
    assert len(rows(tmp_path, 0)) == len(rows(tmp_path, 1)) < STEPS
    run, _ = drive(tmp_path, faults)
    assert run.phase.ending == "complete"
    assert rows(tmp_path, 0) == expected(0)


def test_capacity_that_is_lost_leaves_the_next_attempt_fewer_workers(tmp_path):
    faults = Faults().lose_capacity(to=1, at=("step", 2)).kill(1, at=("step", 3))
    run, engines = drive(tmp_path, faults, sizes=(1, 2))
    assert run.phase.ending == "complete"
    assert [len(group.workers) for group in engines[0].groups] == [2, 1]


def test_capacity_is_lost_and_regained_at_its_moments(tmp_path):
    faults = Faults().lose_capacity(to=1, at=("commit", 2)).regain_capacity(to=3, at=("commit", 4))
    engine = FaultyEngine(FakeEngine(worker), faults, faults.memory(tmp_path), FakeClock(), lose=lambda: None)
    room = []
    for seq in (0, 2, 4):
        engine.enter_phase("commit", seq)
        engine.wait(0)
        room.append(engine.capacity(WorkerResources(), 1, 4))
    assert room == [4, 1, 3]


@pytest.mark.parametrize("act", ["write", "rename", "make_dir", "sync_dir"])
def test_a_commit_that_the_disk_refuses_leaves_the_checkpoint_before_it(tmp_path, act):
    # On the fake engine the driver alone writes through the seam: this is its commit of report 4.
    faults = Faults().fail_write("*checkpoint_000004*", act=act, error=errno.EIO)
    run, _ = drive(tmp_path, faults)
    assert faults.unfired(tmp_path) == []
    assert run.phase.ending == "complete"
    assert [event.seq for event in read_events(tmp_path, CommitFailed)] == [4]
    assert run.latest.seq == LAST_CHECKPOINT


@pytest.mark.parametrize(("message", "number", "missing"), [("WorkerReady", None, []), ("Reported", 3, [3])])
def test_a_message_that_nobody_waits_for_is_lost_alone(tmp_path, message, number, missing):
    run, _ = drive(tmp_path, Faults().drop(message, rank=1, number=number))
    assert run.phase.ending == "complete"
    assert rows(tmp_path, 1) == [row for row in expected(1) if row["seq"] not in missing]
    assert rows(tmp_path, 0) == expected(0)


def request_stop(controller):
    controller._inbox.append(StopRequested(1))


# A socket that loses messages has lost its connection, and then the worker counts as exited. An engine that may lose
# single messages has to send them again.
@pytest.mark.parametrize("message", ["CheckpointStaged", "CheckpointCommitted", "WorkerReturned", "Joined", "Release"])
def test_a_message_that_never_comes_is_waited_for_without_end(tmp_path, message):
    with pytest.raises(Stuck):
        drive(tmp_path, Faults().drop(message, rank=1), limit=300)


def test_a_report_that_never_comes_is_waited_for_without_end(tmp_path):
    with pytest.raises(Stuck):
        drive(tmp_path, Faults().drop("Reported", rank=1, number=4), limit=300)


@pytest.mark.parametrize("message", ["Hold", "WorkerHeld"])
def test_a_message_about_a_stop_that_never_comes_is_waited_for_without_end(tmp_path, message):
    with pytest.raises(Stuck):
        drive(tmp_path, Faults().drop(message, rank=1), limit=300, before=request_stop)


def test_a_stop_that_one_rank_does_not_hear_of_ends_all_a_while_after_the_first_has_stopped(tmp_path):
    run, _ = drive(tmp_path, Faults().drop("StopAt", rank=1), before=request_stop)
    assert run.phase.ending == "interrupted"


def test_a_message_held_back_holds_back_what_follows_it_and_no_other_rank(tmp_path):
    faults = Faults().delay("Reported", rank=1, number=1, delay_s=50, times=1)
    run, _ = drive(tmp_path, faults)
    assert run.phase.ending == "complete"
    reports = [(event.rank, event.seq) for event in read_events(tmp_path, Reported)]
    assert reports[:3] == [(0, 1), (0, 2), (1, 1)]
