"""Whole runs on a full, failing or damaged disk: what is kept, what is reported, how the run continues."""

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from fits import count_up

from paceline import train
from paceline._storage import commit, files
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline.train import Checkpoint, CheckpointUploadMode, ControllerError, StorageError, WorkerGroupError

SIZE = 4 << 20


@pytest.fixture
def small_disk(tmp_path):
    """A disk of a few megabytes, as a run's storage."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here ({mounted.stderr.strip()}): a really full disk was not tried")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


class Failing(LocalFiles):
    """Storage of one rank that has no room for the next file."""

    def write_parts(self, path, parts, num_bytes):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def checkpoint_of(i, num_bytes):
    return Checkpoint.from_dict({"i": i, "weights": np.full(num_bytes, i, dtype=np.uint8)})


def saved(result):
    result.checkpoint.verify()
    return result.checkpoint.to_dict()["i"]


def test_a_full_disk_ends_the_run_with_the_cause_and_a_freed_one_lets_it_continue(small_disk, fit):
    def function():
        last = train.get_checkpoint()
        start = last.to_dict()["i"] + 1 if last else 0
        for i in range(start, 4):
            large = i == 2 and (small_disk / "filler").exists()
            train.report({"i": i, "start": start}, checkpoint=checkpoint_of(i, SIZE // 2 if large else 1000))

    (small_disk / "filler").write_bytes(b"x" * (SIZE - 1_000_000))
    with pytest.raises(WorkerGroupError) as caught:
        fit(function)
    error = caught.value
    assert isinstance(error.__cause__, StorageError)
    assert "No space left on device: " in str(error).splitlines()[2]
    assert "checkpoint_000002 (report 2)" in str(error)
    assert saved(error.result) == 1
    (small_disk / "filler").unlink()
    result = fit(function)
    assert result.metrics == {"i": 3, "start": 2}
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3]


def test_a_disk_full_of_metrics_is_a_clear_error_and_a_freed_one_lets_the_run_continue(small_disk, fit):
    """Whoever comes first to the full disk, the worker's file or the driver's journal."""

    def function():
        last = train.get_checkpoint()
        if last is None:
            train.report({"i": 0}, checkpoint=Checkpoint.from_dict({"i": 0}))
        while (small_disk / "filler").exists():
            train.report({"text": "x" * 10_000})
        return "done"

    (small_disk / "filler").write_bytes(b"x" * (SIZE // 2))
    with pytest.raises((WorkerGroupError, ControllerError), match="No space left on device: ") as caught:
        fit(function, 1)
    assert f"{small_disk}/run/" in str(caught.value)
    assert train.Result.from_path(small_disk / "run").checkpoint.to_dict() == {"i": 0}
    (small_disk / "filler").unlink()
    result = fit(function, 1)
    assert result.return_value == "done"
    assert result.checkpoint.to_dict() == {"i": 0}


@pytest.mark.parametrize(
    "num_bytes", [pytest.param(1, marks=pytest.mark.slow), 700, pytest.param(2000, marks=pytest.mark.slow)]
)
def test_a_journal_without_room_is_one_clear_error_and_the_next_driver_recovers(tmp_path, fit, monkeypatch, num_bytes):
    write = os.write

    def write_until_full(fd, data):
        if not os.readlink(f"/proc/self/fd/{fd}").endswith("journal.jsonl"):
            return write(fd, data)
        left = num_bytes - os.fstat(fd).st_size
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, bytes(data)[:left])

    monkeypatch.setattr(os, "write", write_until_full)
    monkeypatch.setattr(files, "FULL_DISK_PATIENCE_S", 0.0)
    with pytest.raises(ControllerError) as caught:
        fit(count_up(6))
    text = str(caught.value)
    assert text.startswith("StorageError: the run's journal cannot be written: ")
    assert f"{tmp_path}/run/journal.jsonl" in text
    assert " bytes needed, " in text
    assert isinstance(caught.value.__cause__, StorageError)
    monkeypatch.undo()
    committed = sorted(path.name for path in (tmp_path / "run").glob("checkpoint_*"))
    result = fit(count_up(6))
    assert result.metrics["i"] == 5
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3, 4, 5]
    assert set(committed) <= {path.name for path in (tmp_path / "run").glob("checkpoint_*")}, "none was lost"


def test_a_failing_disk_under_the_journals_sync_ends_the_run_with_its_name(fit, monkeypatch):
    sync = os.fsync

    def broken(fd):
        if os.readlink(f"/proc/self/fd/{fd}").endswith("journal.jsonl") and os.fstat(fd).st_size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    monkeypatch.setattr(os, "fsync", broken)
    # Which of them depends on who syncs first: the loop of the controller, or a commit.
    with pytest.raises((ControllerError, StorageError), match=r"Input/output error: .*journal\.jsonl"):
        fit(lambda: train.report({}, checkpoint=Checkpoint.from_dict({})))


@pytest.mark.parametrize("first", ["the failing rank", pytest.param("the others", marks=pytest.mark.slow), "both fail"])
@pytest.mark.parametrize("mode", list(CheckpointUploadMode)[:2], ids=lambda mode: mode.value)
def test_when_a_rank_or_each_cannot_store_its_files_all_are_told_and_stay_in_step(fit, mode, first):
    def function():
        context = train.session._require_context("test")
        rank = train.get_context().get_world_rank()
        healthy = context.uploader._files
        errors = []
        for i in range(4):
            fails = i == 1 and (rank == 1 or first == "both fail")
            context.uploader._files = Failing() if fails else healthy
            checkpoint = Checkpoint.from_dict({"i": i})
            if i == 1 and rank == 0 and first == "the failing rank":
                with context._changed:
                    assert context._changed.wait_for(lambda: 2 in context._refused, timeout=240)
            if i == 1 and rank == 1 and first == "the others":
                while context.layout.reports(1, 0).read_bytes().count(b'"type":"checkpoint_staged"') < 2:
                    time.sleep(0.01)
            try:
                train.report({"i": i}, checkpoint=checkpoint, checkpoint_upload_mode=mode)
                train.get_all_reported_checkpoints()
            except StorageError as error:
                errors.append((i, str(error)))
        return train.collective.gather(errors)

    events = {}

    class Reports(train.UserCallback):
        def after_report(self, run_context, metrics, checkpoint):
            events[metrics[0]["i"]] = (metrics, checkpoint)

    result = fit(function, callbacks=[Reports()])
    if first == "both fail":
        told = [text for errors in result.return_value for _, text in errors]
        assert [len(errors) for errors in result.return_value] == [1, 1], told
        assert all("cannot stage the checkpoint: [Errno 28] No space left on device" in text for text in told), told
    else:
        ((i, text),), ((_, own),) = result.return_value
        assert i == (1 if mode is CheckpointUploadMode.SYNC or first == "the failing rank" else 2)
        assert "report 2: rank 1 cannot stage the checkpoint: [Errno 28] No space left on device" in text
        assert ("this rank" in own, "cannot stage the checkpoint: [Errno 28]" in own) == (mode.value == "ASYNC", True)
    assert [metrics["i"] for _, metrics in result.best_checkpoints] == [0, 2, 3]
    assert result.checkpoint.to_dict() == {"i": 3}
    assert sorted(events) == [0, 1, 2, 3], "callbacks are called for the reports after it, too"
    assert events[1][1] is None
    assert events[3][1].to_dict() == {"i": 3}


def test_a_rank_that_brought_no_files_is_not_told_of_those_that_failed_and_no_rank_is_left_waiting(fit):
    def function():
        context = train.session._require_context("test")
        rank = train.get_context().get_world_rank()
        if rank == 1:
            train.report({"i": 0})
        else:
            healthy, context.uploader._files = context.uploader._files, Failing()
            with pytest.raises(StorageError, match=r"report 1: cannot stage the checkpoint: \[Errno 28\]"):
                train.report({"i": 0}, checkpoint=Checkpoint.from_dict({"i": 0}))
            context.uploader._files = healthy
        with pytest.raises((TypeError, StorageError)) as caught:
            train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"x": print if rank == 1 else 1}))
        train.report({"i": 2}, checkpoint=Checkpoint.from_dict({"i": 2}))
        return str(caught.value)

    result = fit(function)
    assert "rank 1 cannot stage the checkpoint: TypeError: state['x'] is a" in result.return_value
    assert [checkpoint.to_dict() for checkpoint, _ in result.best_checkpoints] == [{"i": 2}]


@pytest.fixture(scope="module")
def failed_run(fit_in, tmp_path_factory):
    """A run that failed after four checkpoints, of which three are kept."""
    path, function = tmp_path_factory.mktemp("runs"), count_up(9, 3, lambda: os._exit(1), rank=0)
    with pytest.raises(WorkerGroupError):
        fit_in(path, function, 1, checkpoint_config=train.CheckpointConfig(num_to_keep=3))
    return path / "run"


@pytest.fixture
def damaged(failed_run, tmp_path):
    """A copy of that run, to be damaged."""
    shutil.copytree(failed_run, tmp_path / "run")
    return RunLayout(tmp_path / "run")


def flip_first_bit(path):
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def move_and_link(path):
    twin = path.parent.parent / f"twin-{path.name}"
    path.rename(twin)
    path.symlink_to(twin)


@pytest.mark.parametrize(
    ("victim", "damage"),
    [
        ("state.bin", move_and_link),
        ("state.json", lambda path: path.write_bytes(b"")),
        ("state.json", lambda path: (path.unlink(), path.mkdir())),
        (".manifest.json", lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])),
        (".manifest.json", flip_first_bit),
        (".manifest.json", Path.unlink),
    ],
)
def test_a_damaged_file_in_the_newest_checkpoint_costs_that_checkpoint_only_and_is_told(
    damaged, fit, victim, damage, capsys, caplog
):
    damage(damaged.root / "checkpoint_000004" / victim)
    result = fit(count_up(5), 1)
    assert result.metrics == {"i": 4, "start": 3}, "went on from the one before"
    output = capsys.readouterr().err + caplog.text
    assert "checkpoint_000004" in output
    if damage is Path.unlink:
        assert "was committed, but it or its manifest is missing" in output
    else:
        assert "skipping a corrupt checkpoint" in output
        assert (damaged.quarantine / "checkpoint_000004").exists(), "kept for a person to look at"
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3, 4]
    assert saved(result) == 4


def test_every_bit_of_a_manifest_counts(damaged):
    """But for spaces, and the name of the checksum itself."""
    path = damaged.root / "checkpoint_000004" / ".manifest.json"
    whole = path.read_bytes()
    unnoticed = []
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if commit.find_problem(path.parent) is None:
            unnoticed.append(at)
    tail = whole.rindex(b'"crc32"')
    assert all(at > tail for at in unnoticed), "what it says was altered and nobody noticed"
    assert len(unnoticed) <= len(b'"crc32": ')


@pytest.mark.parametrize("with_initial", [False, True])
def test_with_every_checkpoint_broken_the_run_begins_anew_or_from_what_it_was_given_and_says_so(
    damaged, fit, tmp_path, with_initial, capsys
):
    for path in damaged.root.glob("checkpoint_*/state.bin"):
        path.write_bytes(b"")
    (tmp_path / "given").mkdir()
    given = Checkpoint.from_dict({"i": 6, "weights": np.zeros(1)}).to_directory(tmp_path / "given")
    result = fit(count_up(9), 1, resume_from_checkpoint=Checkpoint(given) if with_initial else None)
    assert result.metrics == {"i": 8, "start": 7 if with_initial else 0}
    output = capsys.readouterr().err
    assert output.count("skipping a corrupt checkpoint") == 3
    assert "no checkpoint of the run is left" in output
    assert (str(given) in output) is with_initial
    assert len(list(damaged.quarantine.iterdir())) == 3
