"""A run read while it is written: what is new, what is torn, what is replaced, and who holds it."""

import json
import os
import shutil
import signal
import threading
import time
import uuid
from pathlib import Path

import msgspec
import pytest
from written_runs import WrittenRun, committed, ended, report, started

from paceline import train
from paceline._control import events
from paceline._control.events import (
    DriverStarted,
    FileMade,
    HangPassed,
    HangSuspected,
    StopRequested,
    TimeTold,
    WorkerFailed,
    WorkerReady,
    WorkersStopped,
)
from paceline._control.recover import history_of
from paceline._core.codec import sealed
from paceline._core.errors import StorageError
from paceline._engine.messages import Failure
from paceline._storage.home import Home
from paceline._storage.lease import Holder
from paceline._storage.segments import Segments
from paceline._storage.slots import DiskSlot, StoreSlot
from paceline._view.model import Detail, Summary, encode
from paceline._view.reading import RunReader
from paceline.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
)
from servers import BUCKET


@pytest.fixture
def run(tmp_path):
    return WrittenRun(tmp_path / "run", *started())


def hold(run):
    """As a driver on another machine that renews its lease."""
    now = time.time()
    DiskSlot(run.root / ".lease").take(Holder(1, pid=1, host="elsewhere", machine="m", renewed_at=now, token="t"), None)


def test_only_what_was_appended_is_read_and_a_torn_line_is_left_for_the_next_time(run):
    hold(run)
    reader = RunReader(run.root)
    assert reader.refresh()
    assert not reader.refresh()
    run.write(report(1, {"loss": 1.0}))
    line = sealed(events.encode(report(2, {"loss": 0.5})))
    with run.journal.open("ab") as file:
        file.write(line[:30])
    version = reader.version
    assert reader.refresh()
    assert reader.version > version
    assert reader.last_step == 1
    with run.journal.open("ab") as file:
        file.write(line[30:])
    assert reader.refresh()
    assert [(row["step"], row["loss"]) for row in reader.rows()] == [(1, 1.0), (2, 0.5)]
    assert reader.summary().metrics == {"loss": 0.5}


def test_what_follows_an_altered_line_is_not_trusted_until_a_driver_has_cut_it_off(run):
    hold(run)
    run.write(report(1, {"loss": 1.0}))
    good = run.journal.read_bytes()
    bad = bytearray(sealed(events.encode(report(2, {"loss": 0.5}))))
    bad[40] ^= 1
    run.journal.write_bytes(good + bytes(bad) + sealed(events.encode(report(3, {"loss": 0.4}))))
    reader = RunReader(run.root)
    reader.refresh()
    reader.refresh()
    assert [row["step"] for row in reader.rows()] == [1]
    run.journal.write_bytes(good)
    run.write(report(2, {"loss": 0.3}))
    reader.refresh()
    assert [row["loss"] for row in reader.rows()] == [1.0, 0.3]


@pytest.mark.parametrize("how", ["replaced", "cut", "cut and grown", "copied", "removed"])
def test_a_journal_that_is_another_is_read_anew(run, how):
    hold(run)
    run.write(*(report(seq, {"loss": float(seq)}) for seq in range(1, 9)))
    reader = RunReader(run.root)
    reader.refresh()
    whole = run.journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    if how == "replaced":
        run.journal.rename(run.root / "journal.jsonl.other")
        WrittenRun(run.root, *started(at=5000.0), report(1, {"loss": -1.0}))
        expected = [-1.0]
    elif how == "cut":
        run.journal.write_bytes(b"".join(lines[:-2]))
        expected = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    elif how == "cut and grown":
        run.journal.write_bytes(b"".join(lines[:-2]))
        run.write(*(report(seq, {"loss": -float(seq)}) for seq in (7, 8, 9)))
        expected = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -7.0, -8.0, -9.0]
    elif how == "copied":
        copy = run.root / "copy"
        copy.write_bytes(whole)
        copy.rename(run.journal)
        run.write(report(9, {"loss": 9.0}))
        expected = [float(seq) for seq in range(1, 10)]
    else:
        run.journal.unlink()
        expected = []
    assert reader.refresh()
    assert [row["loss"] for row in reader.rows()] == expected


def test_a_later_attempt_takes_the_place_of_the_reports_that_it_makes_again(run):
    hold(run)
    reader = RunReader(run.root)
    run.write(*(report(seq, {"loss": float(seq), "old": 1}) for seq in range(1, 6)))
    reader.refresh()
    assert reader.summary().best.step == 1
    run.write(DriverStarted(1, 0, at=1100.0), WorkerReady(2, 0, 1))
    reader.refresh()
    assert reader.last_step == 0
    run.write(report(1, {"loss": 9.0}, attempt=2))
    reader.refresh()
    assert [(row["attempt"], row["step"], row["loss"]) for row in reader.rows()] == [(2, 1, 9.0)]
    assert reader.summary().best.value == 9.0
    assert reader.metric_names() == ("loss",)
    assert reader.points(["loss"])[0].y == [9.0]
    first, second = reader.detail().attempts
    assert (first.ending, first.first_report, first.last_report) == ("lost", 1, 5)
    assert (second.ending, second.last_report) == ("", 1)


def test_nan_infinity_texts_and_nested_metrics_are_shown_as_plain_values(run):
    run.write(
        report(
            1, {"loss": {"$number": "nan"}, "eval": {"acc": 1, "who": "x", "all": [1, 2]}, "inf": {"$number": "inf"}}
        )
    )
    reader = RunReader(run.root)
    reader.refresh()
    shown = reader.summary().metrics
    assert shown == {"loss": "nan", "eval/acc": 1, "eval/who": "x", "eval/all": "[1,2]", "inf": "inf"}
    assert json.loads(encode(reader.summary()))["metrics"] == shown
    assert reader.points(["loss", "eval/acc", "none"])[0].y == [None]
    assert set(reader.metric_names()) == {"loss", "eval/acc", "inf"}


@pytest.mark.parametrize(
    ("events_after", "state"),
    [
        ([], "running"),
        ([StopRequested(1)], "stopping"),
        (ended(), "complete"),
        ([StopRequested(1, now=True), WorkersStopped(1)], "stopped"),
        ([WorkerFailed(1, 0, Failure(0, "user", "ValueError: no")), WorkersStopped(1)], "failed"),
    ],
)
def test_the_state_is_told_in_a_word(run, events_after, state):
    hold(run)
    run.write(*events_after)
    reader = RunReader(run.root)
    reader.refresh()
    assert reader.summary().state == state
    assert reader.is_ended == (state not in ("running", "stopping"))


def test_a_run_that_nobody_holds_is_lost_and_one_that_has_ended_is_not(run):
    reader = RunReader(run.root)
    reader.refresh()
    assert reader.summary().state == "lost"
    assert reader.summary().ended_at == 1001.0
    hold(run)
    assert reader.refresh(), "somebody took it up"
    assert reader.summary().state == "running"
    shutil.rmtree(run.root / ".lease")
    run.write(*ended())
    reader.refresh()
    assert reader.summary().state == "complete"


def test_reports_that_no_driver_read_are_shown_once_the_driver_is_gone(run):
    run.write(report(1, {"loss": 1.0}))
    own = run.root / "reports" / "attempt_1" / "rank_0.jsonl"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"".join(sealed(events.encode(report(seq, {"loss": 1.0 / seq}))) for seq in range(1, 6)))
    hold(run)
    reader = RunReader(run.root)
    reader.refresh()
    assert reader.last_step == 1
    shutil.rmtree(run.root / ".lease")
    assert reader.refresh()
    assert reader.last_step == 5
    assert [row["step"] for row in reader.rows()] == [1, 2, 3, 4, 5]
    assert reader.run == history_of(Home.of_path(str(run.root)).depot_to_read())[0]
    # And a driver that takes over tells them itself.
    run.write(*(report(seq, {"loss": -1.0}) for seq in range(2, 4)), *started(attempt=2, at=1500.0))
    reader.refresh()
    assert [row["loss"] for row in reader.rows()] == [1.0, -1.0, -1.0]


def test_what_an_unknown_version_wrote_is_shown_up_to_there(run):
    hold(run)
    run.write(report(1, {"loss": 1.0}))
    with run.journal.open("ab") as file:
        file.write(sealed(b'{"type":"FromTheFuture"}'))
    run.write(report(2, {"loss": 0.5}))
    reader = RunReader(run.root)
    reader.refresh()
    assert reader.last_step == 1
    assert "is not understood by this version" in reader.summary().failure


def test_where_there_is_no_run_that_is_said(tmp_path):
    reader = RunReader(tmp_path / "nothing")
    assert not reader.refresh()
    with pytest.raises(StorageError, match="has no journal of a run"):
        reader.summary()
    WrittenRun(tmp_path / "search").journal.write_bytes(sealed(b'{"type":"SearchStarted"}'))
    with pytest.raises(StorageError, match="holds a search, not a run"):
        RunReader(tmp_path / "search").refresh()


def test_hangs_have_their_verdicts_and_whether_they_passed(run):
    hold(run)
    hang = Failure(0, "hang", "rank 0 hangs in train.py:41", at=1050.0)
    run.write(HangSuspected(1, hang))
    reader = RunReader(run.root)
    reader.refresh()
    assert reader.summary().hang == "rank 0 hangs in train.py:41"
    assert reader.detail().attempts[0].workers[0].state == "hangs"
    run.write(TimeTold(1060.0), HangPassed(1, 0, after_s=10.0))
    reader.refresh()
    (told,) = reader.detail().attempts[0].hangs
    assert (told.verdict, told.at, told.passed_after_s, told.action) == (hang.message, 1050.0, 10.0, "warn")
    assert reader.summary().hang is None
    assert reader.detail().attempts[0].workers[0].state == "running"


def test_checkpoints_kept_and_gone_are_told_apart(tmp_path):
    def function():
        for step in range(4):
            train.report({"loss": 4 - step}, checkpoint=Checkpoint.from_dict({"step": step}))

    config = RunConfig(
        name="run",
        storage_path=str(tmp_path),
        checkpoint_config=CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
        ),
    )
    DataParallelTrainer(function, run_config=config).fit()
    reader = RunReader(tmp_path / "run")
    reader.refresh()
    found = {one.seq: one for one in reader.detail().checkpoints}
    assert {seq: one.kept for seq, one in found.items()} == {1: False, 2: False, 3: True, 4: True}
    assert [seq for seq, one in found.items() if one.is_best] == [4]
    assert [seq for seq, one in found.items() if one.is_latest] == [4]
    assert found[4].metrics == {"loss": 1}
    assert found[4].at > 1e9
    assert Path(found[4].path).is_dir()
    shutil.rmtree(found[3].path)
    assert [one.seq for one in reader.detail().checkpoints if one.kept] == [4]
    summary = reader.summary()
    assert (summary.state, summary.num_checkpoints, summary.best.value, summary.progress) == ("complete", 2, 1, 1.0)


def test_a_killed_worker_shows_as_failed_and_is_the_cause(tmp_path):
    def function():
        rank = train.get_context().get_world_rank()
        train.report({"i": 1})
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        train.report({"i": 2})
        signal.pause()

    trainer = DataParallelTrainer(
        function, scaling_config=ScalingConfig(2), run_config=RunConfig(name="run", storage_path=str(tmp_path))
    )
    with pytest.raises(TrainingFailedError):
        trainer.fit()
    reader = RunReader(tmp_path / "run")
    reader.refresh()
    detail = reader.detail()
    assert detail.summary.state == "failed"
    assert "SIGKILL" in detail.summary.failure
    (attempt,) = detail.attempts
    assert attempt.ending == "failed"
    assert {worker.rank: worker.state for worker in attempt.workers} == {0: "gone", 1: "failed"}
    assert "killed by SIGKILL" in attempt.workers[1].failure
    assert [failure.rank for failure in attempt.failures if failure.is_cause] == [1]
    assert detail.summary.num_failures == 1
    assert [happened.kind for happened in detail.timeline][-1] == "end"
    assert msgspec.json.decode(encode(detail), type=Detail) == detail


LOST = """
import os, signal
from paceline import train
from paceline.train import DataParallelTrainer, RunConfig

def function(config):
    for i in range(10):
        train.report({"i": i})
    os.kill(config["driver"], signal.SIGSTOP)
    for i in range(10, 300):
        train.report({"i": i})
    os.kill(config["driver"], signal.SIGKILL)
    signal.pause()

run_config = RunConfig(name="run", storage_path="runs")
DataParallelTrainer(function, train_loop_config={"driver": os.getpid()}, run_config=run_config).fit()
"""


def test_a_run_whose_driver_was_killed_shows_all_that_was_reported(run_script, tmp_path):
    assert run_script(LOST).returncode == -signal.SIGKILL
    reader = RunReader(tmp_path / "runs" / "run")
    reader.refresh()
    summary = reader.summary()
    assert (summary.state, summary.num_reports) == ("lost", 300)
    assert [row["i"] for row in reader.rows()] == list(range(300))
    assert reader.detail().attempts[0].ending == "lost"
    assert reader.detail().attempts[0].workers[0].state == "gone"
    # The same of a copy, which has the same lease.
    shutil.copytree(tmp_path / "runs" / "run", tmp_path / "copy")
    copy = RunReader(tmp_path / "copy")
    copy.refresh()
    assert copy.summary().num_reports == 300


def test_a_run_can_be_read_while_it_is_driven(tmp_path):
    """By another thread, from before its first line to its last: steps only grow, and all are there in the end."""
    reached, seen, stop = threading.Event(), [], threading.Event()

    def look():
        reader = RunReader(tmp_path / "run")
        while not stop.is_set():
            if reader.refresh():
                seen.append((reader.summary().state, reader.last_step))
                reached.set()
        reader.refresh()
        seen.append((reader.summary().state, len(list(reader.rows()))))

    def function():
        for i in range(400):
            train.report({"i": i})

    thread = threading.Thread(target=look)
    thread.start()
    try:
        DataParallelTrainer(function, run_config=RunConfig(name="run", storage_path=str(tmp_path))).fit()
    finally:
        stop.set()
        thread.join()
    steps = [step for _, step in seen]
    assert steps == sorted(steps)
    assert seen[-1] == ("complete", 400)
    assert "lost" not in [state for state, _ in seen]
    assert "starting" in [state for state, _ in seen]


def test_small_runs_are_read_without_numpy(run_script, tmp_path):
    WrittenRun(tmp_path / "run", *started(), *(report(seq, {"loss": 1.0}) for seq in range(1, 500)))
    ended = run_script(
        "import sys\n"
        "from paceline._view.reading import RunReader\n"
        "reader = RunReader('run')\n"
        "reader.refresh()\n"
        "reader.summary(), reader.points(['loss'], at_most=100), reader.detail()\n"
        "print([name for name in ('numpy', 'pyarrow', 'paceline.tune', 'psutil') if name in sys.modules])\n"
    )
    assert ended.stdout.strip() == "[]", ended.stderr


# In a store


@pytest.fixture
def s3_path(s3_environment, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"


def test_a_run_in_a_store_is_read_slice_by_slice(s3_path, tmp_path):
    spool = WrittenRun(tmp_path / "local", *started())
    home = Home(s3_path, "run")
    segments = Segments(home.store(), spool.journal)
    segments.put_new()
    StoreSlot(home.store(), "run").take(Holder(1, pid=1, host="elsewhere", renewed_at=4e9, token="t"), None)
    reader = RunReader(f"{s3_path}/run")
    assert reader.refresh()
    assert reader.summary().state == "running"
    spool.write(report(1, {"loss": 1.0}), report(2, {"loss": 0.5}))
    segments.put_new()
    assert reader.refresh()
    assert not reader.refresh()
    spool.write(*ended(num_reports=2))
    segments.put_new()
    assert reader.refresh()
    assert reader.summary().state == "complete"
    assert reader.summary().path == f"{s3_path}/run"
    assert [row["loss"] for row in reader.rows()] == [1.0, 0.5]


def test_a_run_that_was_trained_into_a_store_is_shown_with_its_checkpoints_and_logs(s3_path):
    def function():
        print("a line of the log")
        train.report({"loss": 0.5}, checkpoint=Checkpoint.from_dict({"a": 1}))

    DataParallelTrainer(function, run_config=RunConfig(name="run", storage_path=s3_path)).fit()
    reader = RunReader(f"{s3_path}/run")
    reader.refresh()
    detail = reader.detail()
    (checkpoint,) = detail.checkpoints
    assert checkpoint.kept
    assert checkpoint.path == f"{s3_path}/run/attempt_1/checkpoint_000001"
    assert [log.path for log in detail.logs] == ["logs/attempt_1/rank_0.log"]
    assert detail.summary.state == "complete"
    assert isinstance(detail.summary, Summary)


def test_checkpoints_of_a_lost_run_that_its_journal_does_not_tell_of_are_found(tmp_path):
    def function():
        for step in range(3):
            train.report({"loss": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    DataParallelTrainer(function, run_config=RunConfig(name="run", storage_path=str(tmp_path))).fit()
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    last = max(at for at, line in enumerate(lines) if b'"Committed"' in line)
    journal.write_bytes(b"".join(lines[:last]))
    reader = RunReader(tmp_path / "run")
    reader.refresh()
    detail = reader.detail()
    assert detail.summary.state == "lost"
    assert [one.seq for one in detail.checkpoints if one.kept] == [1, 2, 3]
    assert reader.run == history_of(Home.of_path(str(tmp_path / "run")).depot_to_read())[0]
    journal.write_bytes(b"".join(lines))
    reader.refresh()
    assert reader.summary().state == "complete"


def test_names_and_paths_of_a_strangers_journal_lead_nowhere(run, tmp_path):
    hold(run)
    run.write(
        report(1, {"loss": 1.0}, checkpoint="x"),
        committed(1, name="../../outside"),
        FileMade("flame", "../outside", 0, 1.0),
        FileMade("trace", "logs/attempt_1/trace.json", 0, 1.0),
    )
    (tmp_path / "outside").write_text("secret")
    reader = RunReader(run.root)
    reader.refresh()
    detail = reader.detail()
    assert [(one.path, one.kept) for one in detail.checkpoints] == [("", False)]
    assert [(file.path, file.num_bytes) for file in detail.files] == [("logs/attempt_1/trace.json", 0)]


def test_attempts_are_told_with_how_they_ended_and_where_they_began(tmp_path):
    def function(config):
        last = train.get_checkpoint()
        for step in range(last.to_dict()["step"] + 1 if last else 0, 4):
            train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
            if step == 1 and last is None and train.get_context().get_world_rank() == 1:
                raise RuntimeError("the second step does not please me")

    run_config = RunConfig(name="run", storage_path=str(tmp_path), failure_config=FailureConfig(max_failures=1))
    DataParallelTrainer(
        function, train_loop_config={"lr": 0.5}, scaling_config=ScalingConfig(2), run_config=run_config
    ).fit()
    reader = RunReader(tmp_path / "run")
    reader.refresh()
    detail = reader.detail()
    first, second = detail.attempts
    assert (first.ending, second.ending) == ("failed", "complete")
    assert first.resumed_from is None
    assert second.resumed_from in ("checkpoint_000001", "checkpoint_000002")
    (cause,) = [failure for failure in first.failures if failure.is_cause]
    assert (cause.rank, cause.message) == (1, "RuntimeError: the second step does not please me")
    assert "please me" in cause.traceback
    assert first.ended_at <= second.began_at
    assert (detail.summary.state, detail.summary.num_failures, detail.summary.failure) == ("complete", 1, None)
    assert {worker.state for worker in second.workers} == {"returned"}
    assert [worker.num_reports for worker in second.workers] == [4, 4]
    spent = detail.spent
    assert spent.wall_s == (
        spent.starting_s + spent.data_s + spent.compute_s + spent.report_s + spent.checkpoint_s + spent.between_s
    )
    assert spent.starting_s > 0
    assert spent.between_s > 0
    assert detail.config == {"lr": 0.5}
    assert [at.kind for at in detail.timeline if at.kind in ("attempt", "failure", "end")] == [
        "attempt",
        *["failure"] * len(first.failures),
        "attempt",
        "end",
    ]
    assert {log.name for log in detail.logs} == {f"attempt {a}, rank {r}" for a in (1, 2) for r in (0, 1)}
    assert reader.use(attempt=2), "what ranks use is measured"
