"""A run read while it is written: what is new, what is torn, what is replaced, and who holds it."""

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from paceline import train
from paceline._control import events
from paceline._control.events import DriverStarted, RunDescribed, StopRequested, WorkerReady, WorkersStopped
from paceline._control.recovery import load_history
from paceline._core.codec import seal_line
from paceline._core.cursor import Cursor, count_dataset_epochs
from paceline._engine.messages import WorkerFailure
from paceline._storage.lease import LeaseHolder
from paceline._storage.lease_stores import DiskLeaseStore
from paceline._storage.run_location import RunLocation
from paceline._view.model import RunSnapshot, encode
from paceline._view.pace import PaceEstimator
from paceline._view.run_reader import RunReader
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from written_runs import WrittenRun, committed, ended, report, started


@pytest.fixture
def run(tmp_path):
    return WrittenRun(tmp_path / "run", *started())


def hold(run):
    """Take the lease as a driver on another machine that renews it for ever."""
    DiskLeaseStore(run.root / ".lease").try_acquire(
        LeaseHolder(1, pid=1, host="elsewhere", machine="m", renewed_at=4e9, token="t"), None
    )


def read(root):
    reader = RunReader(root)
    reader.refresh()
    return reader


def test_only_what_was_appended_is_read_and_a_torn_line_is_left_for_the_next_time(run):
    hold(run)
    reader = RunReader(run.root)
    assert reader.refresh()
    assert not reader.refresh()
    run.write(report(1, {"loss": 1.0}))
    line = seal_line(events.encode_event(report(2, {"loss": 0.5})))
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
    bad = bytearray(seal_line(events.encode_event(report(2, {"loss": 0.5}))))
    bad[40] ^= 1
    run.journal.write_bytes(good + bytes(bad) + seal_line(events.encode_event(report(3, {"loss": 0.4}))))
    reader = read(run.root)
    reader.refresh()
    assert [row["step"] for row in reader.rows()] == [1]
    run.journal.write_bytes(good)
    run.write(report(2, {"loss": 0.3}))
    reader.refresh()
    assert [row["loss"] for row in reader.rows()] == [1.0, 0.3]


@pytest.mark.parametrize("how", ["replaced", "cut", "cut and grown", "copied", "removed"])
def test_a_journal_that_is_another_is_read_anew(run, how):
    hold(run)
    losses = [float(seq) for seq in range(1, 9)]
    run.write(*(report(seq, {"loss": float(seq)}) for seq in range(1, 9)))
    reader = read(run.root)
    whole = run.journal.read_bytes()
    match how:
        case "replaced":
            run.journal.rename(run.root / "journal.jsonl.other")
            WrittenRun(run.root, *started(at=5000.0), report(1, {"loss": -1.0}))
            losses = [-1.0]
        case "cut" | "cut and grown":
            run.journal.write_bytes(b"".join(whole.splitlines(keepends=True)[:-2]))
            more = [-7.0, -8.0, -9.0] if how == "cut and grown" else []
            run.write(*(report(int(-loss), {"loss": loss}) for loss in more))
            losses = [*losses[:-2], *more]
        case "copied":
            (run.root / "copy").write_bytes(whole)
            (run.root / "copy").rename(run.journal)
            run.write(report(9, {"loss": 9.0}))
            losses = [*losses, 9.0]
        case "removed":
            run.journal.unlink()
            losses = []
    assert reader.refresh()
    assert [row["loss"] for row in reader.rows()] == losses


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
    first, second = reader.snapshot().attempts
    assert (first.ending, first.first_report, first.last_report) == ("lost", 1, 5)
    assert (second.ending, second.last_report) == ("", 1)


def test_nan_infinity_texts_and_nested_metrics_are_shown_as_plain_values(run):
    nan, inf = {"$number": "nan"}, {"$number": "inf"}
    run.write(report(1, {"loss": nan, "eval": {"acc": 1, "who": "x", "all": [1, 2]}, "inf": inf}))
    reader = read(run.root)
    shown = reader.summary().metrics
    assert shown == {"loss": "nan", "eval/acc": 1, "eval/who": "x", "eval/all": "[1,2]", "inf": "inf"}
    assert json.loads(encode(reader.summary()))["metrics"] == shown
    assert reader.points(["loss", "eval/acc", "none"])[0].y == [None]
    assert set(reader.metric_names()) == {"loss", "eval/acc", "inf"}


@pytest.mark.parametrize(
    ("events_after", "state"),
    [
        ([], "running"),
        ([DriverStarted(2, 0, at=1001.0), WorkerReady(2, 0, 1)], "starting"),
        ([StopRequested(1)], "stopping"),
        (ended(), "finished"),
        ([StopRequested(1, now=True), WorkersStopped(1)], "stopped"),
        ([events.WorkerFailed(1, 0, WorkerFailure(0, "user", "ValueError: no")), WorkersStopped(1)], "failed"),
    ],
)
def test_the_state_is_one_word(run, events_after, state):
    hold(run)
    run.write(*events_after)
    reader = read(run.root)
    assert reader.summary().state == state
    assert reader.is_ended == (state not in ("running", "starting", "stopping"))


@pytest.mark.parametrize(
    ("config", "metrics", "left_s"),
    [
        ({"num_epochs": 10}, lambda at: {"epoch": at // 40}, 200),
        ({"max_steps": 300}, lambda at: {"step": at + 1}, 100),
        ({"max_steps": 300}, lambda at: {"step": at % 130}, None),  # The last minute does not show that it restarts.
        ({}, lambda at: {"progress": (at + 1) / 250}, 50),
        ({"num_epochs": 5}, lambda at: {}, 50),  # By the position in the dataset.
        ({}, lambda at: {"loss": 1.0}, None),
    ],
    ids=["epochs", "steps", "restarting", "progress", "rows", "unknown"],
)
@pytest.mark.parametrize("saves", [False, True])
def test_the_time_left_in_the_journal_is_that_on_the_terminal(tmp_path, monkeypatch, config, metrics, left_s, saves):
    run = WrittenRun(tmp_path / "run", *started(2), RunDescribed(msgspec.Raw(msgspec.json.encode({"config": config}))))
    hold(run)
    terminal = PaceEstimator(config)
    for at in range(200):
        epoch, row = divmod(at + 1, 50)
        data = (("train", Cursor(epoch=epoch, row=row, total=50)),)
        checkpoint = f"checkpoint_{at:06}" if saves and at % 7 == 0 else None
        reports = [report(at + 1, metrics(at), rank=rank, data=data, checkpoint=checkpoint) for rank in (1, 0)]
        run.write(*reports)
        terminal.add_report(reports[1].at, at + 1, metrics(at), 1, count_dataset_epochs(data))
    now = reports[1].at
    monkeypatch.setattr("paceline._view.run_reader.time", SimpleNamespace(time=lambda: now))
    shown, expected = read(run.root).snapshot(), terminal.estimate(now)
    assert (shown.pace.progress, shown.pace.done) == (expected.progress, expected.done)
    for found in (expected.left_s, shown.pace.left_s, shown.summary.left_s):
        assert found == (None if left_s is None else pytest.approx(left_s, rel=0.01))


def test_reports_that_no_driver_read_are_shown_once_the_driver_is_gone(run):
    run.write(report(1, {"loss": 1.0}))
    own = run.root / "reports" / "attempt_1" / "rank_0.jsonl"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"".join(seal_line(events.encode_event(report(seq, {"loss": 1.0 / seq}))) for seq in range(1, 6)))
    hold(run)
    reader = read(run.root)
    assert reader.last_step == 1
    shutil.rmtree(run.root / ".lease")
    assert reader.refresh()
    assert reader.last_step == 5
    assert [row["step"] for row in reader.rows()] == [1, 2, 3, 4, 5]
    assert reader.run == load_history(RunLocation.from_path(str(run.root)).open_run_store_for_reading())[0]
    # And a driver that takes over tells them itself.
    run.write(*(report(seq, {"loss": -1.0}) for seq in range(2, 4)), *started(attempt=2, at=1500.0))
    reader.refresh()
    assert [row["loss"] for row in reader.rows()] == [1.0, -1.0, -1.0]


def test_hangs_have_their_verdicts_and_whether_they_passed(run):
    hold(run)
    hang = WorkerFailure(0, "hang", "rank 0 hangs in train.py:41", at=1050.0)
    run.write(events.HangSuspected(1, hang))
    reader = read(run.root)
    assert reader.summary().hang == "rank 0 hangs in train.py:41"
    assert reader.snapshot().attempts[0].workers[0].state == "hangs"
    run.write(events.Timestamp(1060.0), events.HangCleared(1, 0, after_s=10.0))
    reader.refresh()
    (shown,) = reader.snapshot().attempts[0].hangs
    assert (shown.verdict, shown.at, shown.passed_after_s, shown.action) == (hang.message, 1050.0, 10.0, "warn")
    assert reader.summary().hang is None
    assert reader.snapshot().attempts[0].workers[0].state == "running"


def test_checkpoints_are_kept_or_gone_and_one_that_the_journal_lacks_is_found(tmp_path):
    def function():
        for step in range(4):
            train.report({"loss": 4 - step}, checkpoint=Checkpoint.from_dict({"step": step}))

    kept = train.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    config = RunConfig(name="run", storage_path=str(tmp_path), checkpoint_config=kept)
    DataParallelTrainer(function, run_config=config).fit()
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    last = max(at for at, line in enumerate(lines) if b'"type":"committed"' in line)
    journal.write_bytes(b"".join(lines[:last]))
    reader = read(tmp_path / "run")
    assert reader.summary().state == "lost"
    assert [one.seq for one in reader.snapshot().checkpoints if one.kept] == [3, 4]
    assert reader.run == load_history(RunLocation.from_path(str(tmp_path / "run")).open_run_store_for_reading())[0]

    journal.write_bytes(b"".join(lines))
    reader.refresh()
    found = {one.seq: one for one in reader.snapshot().checkpoints}
    assert {seq: one.kept for seq, one in found.items()} == {1: False, 2: False, 3: True, 4: True}
    assert [seq for seq, one in found.items() if one.is_best] == [4]
    assert [seq for seq, one in found.items() if one.is_latest] == [4]
    assert found[4].metrics == {"loss": 1}
    assert found[4].at > 1e9
    assert Path(found[4].path).is_dir()
    shutil.rmtree(found[3].path)
    assert [one.seq for one in reader.snapshot().checkpoints if one.kept] == [4]
    summary = reader.summary()
    assert (summary.state, summary.num_checkpoints, summary.best.value, summary.progress) == ("finished", 2, 1, 1.0)


def test_names_and_paths_of_a_strangers_journal_lead_nowhere(run, tmp_path):
    hold(run)
    run.write(
        report(1, {"loss": 1.0}, checkpoint="x"),
        committed(1, name="../../outside"),
        events.DiagnosticFileWritten("flame", "../outside", 0, 1.0),
        events.DiagnosticFileWritten("trace", "logs/attempt_1/trace.json", 0, 1.0),
    )
    (tmp_path / "outside").write_text("secret")
    reader = read(run.root)
    detail = reader.snapshot()
    assert [(one.path, one.kept) for one in detail.checkpoints] == [("", False)]
    assert [(file.path, file.num_bytes) for file in detail.files] == [("logs/attempt_1/trace.json", 0)]


def test_attempts_have_their_endings_causes_workers_and_times(tmp_path):
    """The first fails by an error of the user, the second by a killed worker, the third completes."""

    def function(config):
        last, rank, killed = train.get_checkpoint(), train.get_context().get_world_rank(), tmp_path / "killed"
        for step in range(last.to_dict()["step"] + 1 if last else 0, 4):
            train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
            if rank == 1 and step == 1 and last is None:
                raise RuntimeError("the second step does not please me")
            if rank == 1 and step == 2 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    run_config = RunConfig(name="run", storage_path=str(tmp_path), failure_config=train.FailureConfig(max_failures=2))
    DataParallelTrainer(
        function, train_loop_config={"lr": 0.5}, scaling_config=ScalingConfig(2), run_config=run_config
    ).fit()
    reader = read(tmp_path / "run")
    detail = reader.snapshot()
    assert msgspec.json.decode(encode(detail), type=RunSnapshot) == detail
    first, second, third = detail.attempts
    assert (first.ending, second.ending, third.ending) == ("failed", "failed", "finished")
    assert first.resumed_from is None
    assert second.resumed_from in ("checkpoint_000001", "checkpoint_000002")
    (cause,) = [failure for failure in first.failures if failure.is_cause]
    assert (cause.rank, cause.message) == (1, "RuntimeError: the second step does not please me")
    assert "please me" in cause.traceback
    assert {worker.rank: worker.state for worker in second.workers} == {0: "gone", 1: "failed"}
    assert "killed by SIGKILL" in second.workers[1].failure
    assert [failure.rank for failure in second.failures if failure.is_cause] == [1]
    assert first.ended_at <= second.began_at
    assert (detail.summary.state, detail.summary.num_failures, detail.summary.failure) == ("finished", 2, None)
    assert {worker.state for worker in third.workers} == {"returned"}
    assert [worker.num_reports for worker in third.workers] == [4, 4]
    spent = detail.spent
    assert spent.wall_s == (
        spent.starting_s + spent.data_s + spent.compute_s + spent.report_s + spent.checkpoint_s + spent.between_s
    )
    assert spent.starting_s > 0
    assert spent.between_s > 0
    saves = detail.saves
    assert saves.num_saves == len(detail.checkpoints)
    assert min(saves.copy_s, saves.write_s, saves.hash_s, saves.sync_s, saves.commit_s) > 0
    assert saves.num_bytes == sum(each.num_bytes for each in detail.checkpoints) // saves.num_saves
    assert saves.disk_bytes_per_s is None, "too small to tell"
    assert detail.config == {"lr": 0.5}
    failures = [["attempt", *["failure"] * len(attempt.failures)] for attempt in (first, second)]
    kinds = [at.kind for at in detail.timeline if at.kind in ("attempt", "failure", "end")]
    assert kinds == [*failures[0], *failures[1], "attempt", "end"]
    assert {log.name for log in detail.logs} == {f"attempt {a}, rank {r}" for a in (1, 2, 3) for r in (0, 1)}
    assert reader.usage_series(attempt=3), "what ranks use is measured"
