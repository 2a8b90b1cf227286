"""Whole runs on a disk that is full, broken or tampered with: what is kept, what is told, how the run goes on."""

import contextlib
import errno
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from paceline import train
from paceline._control import journal
from paceline._storage import files
from paceline._storage.files import LocalFiles
from paceline._storage.layout import Layout
from paceline.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    ControllerError,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
    StorageError,
    UserCallback,
    WorkerGroupError,
)
from paceline.train.drive import Seams

SIZE = 4 << 20


@pytest.fixture
def small_disk(tmp_path):
    """A disk of a few megabytes, as a run's storage."""
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here ({made.stderr.strip()}): a really full disk was not tried")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fit(function, path, num_workers=2, *, name="run", seams=None, **run_config):
    trainer = DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(name=name, storage_path=path, **run_config),
    )
    if seams is not None:
        trainer._seams = seams
    return trainer.fit()


class Failing(LocalFiles):
    """Storage of one rank that has no room for the next file."""

    def write_parts(self, path, parts):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def checkpoint_of(kind, i, num_bytes):
    weights = np.full(num_bytes, i, dtype=np.uint8)
    if kind == "state":
        return Checkpoint.from_dict({"i": i, "weights": weights})
    directory = train.staging_directory()
    (directory / "i").write_text(str(i))
    with (directory / "weights").open("wb") as file:
        file.write(weights.tobytes())
    return Checkpoint.from_directory(directory)


def saved(result):
    result.checkpoint.verify()
    with result.checkpoint.as_directory() as directory:
        path = Path(directory)
        return int((path / "i").read_text()) if (path / "i").exists() else result.checkpoint.to_dict()["i"]


# A full disk


@pytest.mark.parametrize("mode", list(CheckpointUploadMode)[:2], ids=lambda mode: mode.value)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_state_too_large_for_the_disk_is_refused_and_the_run_may_go_on(small_disk, mode, num_workers):
    def function():
        told = []
        for i, num_bytes in enumerate([1000, 1000, 3 * SIZE, 1000, 2 * SIZE, 1000]):
            checkpoint = checkpoint_of("state", i, num_bytes)
            try:
                train.report({"i": i}, checkpoint=checkpoint, checkpoint_upload_mode=mode)
                # So that it is known before the next save which report an error is about.
                train.get_all_reported_checkpoints()
            except StorageError as error:
                told.append(str(error))
            # A rank may still fill the disk with what will not fit, and the next save of the other is a small one.
            train.session._context("test").uploader.wait()
            train.collective.barrier()
        train.get_all_reported_checkpoints()
        return told, train.get_checkpoint().to_dict()["i"]

    result = fit(function, small_disk, num_workers)
    told, last = result.return_value
    assert len(told) == 2, told
    assert ["report 3: " in told[0], "report 5: " in told[1]] == [True, True], told
    for text in told:
        assert f"{small_disk}/run/.staging/" in text
        assert "state.bin" in text
        assert "No space left on device: " in text
        assert " bytes were to be written, " in text
        assert " are free" in text
    assert last == 5
    assert saved(result) == 5
    assert result.metrics == {"i": 5}, "the metrics of every report are kept"
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3, 4, 5]
    assert len(result.best_checkpoints) == 4
    for checkpoint, _ in result.best_checkpoints:
        checkpoint.verify()


def test_a_directory_of_the_users_too_large_for_the_disk_is_refused_and_stays(small_disk, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "weights").write_bytes(b"x" * 3 * SIZE)

    def function():
        train.report({"i": 0}, checkpoint=checkpoint_of("state", 0, 10))
        with pytest.raises(StorageError, match=rf"report 2: .*{3 * SIZE - SIZE} bytes|report 2: .*bytes were to be"):
            train.report({"i": 1}, checkpoint=Checkpoint.from_directory(mine))
        train.report({"i": 2}, checkpoint=checkpoint_of("state", 2, SIZE // 2))

    result = fit(function, small_disk, 1)
    assert saved(result) == 2
    assert (mine / "weights").stat().st_size == 3 * SIZE


def test_a_full_disk_ends_the_run_with_the_cause_and_a_freed_one_lets_it_continue(small_disk):
    def function():
        last = train.get_checkpoint()
        start = last.to_dict()["i"] + 1 if last else 0
        for i in range(start, 4):
            large = i == 2 and (small_disk / "filler").exists()
            train.report({"i": i, "start": start}, checkpoint=checkpoint_of("state", i, SIZE // 2 if large else 1000))

    (small_disk / "filler").write_bytes(b"x" * (SIZE - 1_000_000))
    with pytest.raises(WorkerGroupError) as caught:
        fit(function, small_disk)
    error = caught.value
    assert isinstance(error.__cause__, StorageError)
    assert "No space left on device: " in str(error).splitlines()[2]
    assert "checkpoint_000002 (report 2)" in str(error)
    assert saved(error.result) == 1
    (small_disk / "filler").unlink()
    result = fit(function, small_disk)
    assert result.metrics == {"i": 3, "start": 2}
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3]


def test_a_disk_full_of_metrics_is_a_clear_error_and_a_freed_one_lets_the_run_continue(small_disk):
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
        fit(function, small_disk, 1)
    assert f"{small_disk}/run/" in str(caught.value)
    assert Result.from_path(small_disk / "run").checkpoint.to_dict() == {"i": 0}
    (small_disk / "filler").unlink()
    result = fit(function, small_disk, 1)
    assert result.return_value == "done"
    assert result.checkpoint.to_dict() == {"i": 0}


def test_no_room_to_open_the_run_is_a_storage_error_that_names_it(small_disk):
    (small_disk / "filler").write_bytes(b"x" * (SIZE - 4096))
    os.mkdir(small_disk / "run")
    with (small_disk / "more").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    (small_disk / "run" / "journal.jsonl").touch()
    with pytest.raises((StorageError, ControllerError), match="No space left on device"):
        fit(lambda: None, small_disk, 1)


@pytest.fixture
def journal_full_after(monkeypatch):
    """The driver's writes to the journal find no room from a number of bytes on."""
    write = os.write

    def arrange(num_bytes):
        def full(fd, data):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.endswith("journal.jsonl"):
                left = num_bytes - os.fstat(fd).st_size
                if left <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return write(fd, bytes(data)[:left])
            return write(fd, data)

        monkeypatch.setattr(os, "write", full)
        monkeypatch.setattr(files, "FULL_DISK_PATIENCE_S", 0.0)

    return arrange


@pytest.mark.parametrize("num_bytes", [1, 300, 700, 1200, 2000])
def test_a_journal_without_room_is_one_clear_error_and_the_next_driver_recovers(
    tmp_path, journal_full_after, monkeypatch, num_bytes
):
    def function():
        last = train.get_checkpoint()
        for i in range(last.to_dict()["i"] + 1 if last else 0, 6):
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))

    journal_full_after(num_bytes)
    with pytest.raises(ControllerError) as caught:
        fit(function, tmp_path)
    text = str(caught.value)
    assert text.startswith("StorageError: the run's journal could not be written: ")
    assert f"{tmp_path}/run/journal.jsonl" in text
    assert " bytes were to be written, " in text
    assert isinstance(caught.value.__cause__, StorageError)
    monkeypatch.undo()
    committed = sorted(path.name for path in (tmp_path / "run").glob("checkpoint_*"))
    result = fit(function, tmp_path)
    assert result.metrics == {"i": 5}
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3, 4, 5]
    assert set(committed) <= {path.name for path in (tmp_path / "run").glob("checkpoint_*")}, "none was lost"


def test_a_failing_disk_under_the_journals_sync_ends_the_run_with_its_name(tmp_path, monkeypatch):
    sync = os.fsync

    def broken(fd):
        if os.readlink(f"/proc/self/fd/{fd}").endswith("journal.jsonl") and os.fstat(fd).st_size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(ControllerError, match=r"Input/output error: .*journal\.jsonl"):
        fit(lambda: train.report({}, checkpoint=Checkpoint.from_dict({})), tmp_path)


# One rank's disk


@pytest.mark.parametrize("first", ["the failing rank", "the others"])
@pytest.mark.parametrize("mode", list(CheckpointUploadMode)[:2], ids=lambda mode: mode.value)
def test_when_one_rank_cannot_store_its_files_all_are_told_and_stay_in_step(tmp_path, mode, first):
    def function():
        context = train.session._context("test")
        rank = train.get_context().get_world_rank()
        healthy = context.uploader._files
        told = []
        for i in range(4):
            context.uploader._files = Failing() if (rank, i) == (1, 1) else healthy
            checkpoint = Checkpoint.from_dict({"i": i})
            if i == 1 and rank == 0 and first == "the failing rank":
                with context._changed:
                    assert context._changed.wait_for(lambda: 2 in context._refused, timeout=30)
            if i == 1 and rank == 1 and first == "the others":
                while context.layout.reports(1, 0).read_bytes().count(b"CheckpointStaged") < 2:
                    os.sched_yield()
            try:
                train.report({"i": i}, checkpoint=checkpoint, checkpoint_upload_mode=mode)
                train.get_all_reported_checkpoints()
            except StorageError as error:
                told.append((i, str(error)))
        return told

    heard = {}

    class Reports(UserCallback):
        def after_report(self, run_context, metrics, checkpoint):
            heard[metrics[0]["i"]] = (metrics, checkpoint)

    result = fit(function, tmp_path, callbacks=[Reports()])
    ((i, text),) = result.return_value
    assert i == (1 if mode is CheckpointUploadMode.SYNC or first == "the failing rank" else 2)
    assert "report 2: the checkpoint could not be staged by rank 1: [Errno 28] No space left on device" in text
    assert [metrics["i"] for _, metrics in result.best_checkpoints] == [0, 2, 3]
    assert result.checkpoint.to_dict() == {"i": 3}
    assert sorted(heard) == [0, 1, 2, 3], "callbacks are called for the reports after it, too"
    assert heard[1][1] is None
    assert heard[3][1].to_dict() == {"i": 3}


def test_a_rank_that_brought_no_files_is_not_told_of_those_that_failed(tmp_path):
    def function():
        context = train.session._context("test")
        if train.get_context().get_world_rank() == 1:
            for i in range(3):
                train.report({"i": i})
            return
        healthy, context.uploader._files = context.uploader._files, Failing()
        with pytest.raises(StorageError, match=r"report 1: the checkpoint could not be staged: \[Errno 28\]"):
            train.report({"i": 0}, checkpoint=Checkpoint.from_dict({"i": 0}))
        context.uploader._files = healthy
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"i": 1}))
        train.report({"i": 2})

    assert fit(function, tmp_path).checkpoint.to_dict() == {"i": 1}


def test_a_state_that_only_one_rank_cannot_store_does_not_leave_the_others_waiting(tmp_path):
    def function():
        rank = train.get_context().get_world_rank()
        with pytest.raises((TypeError, StorageError)) as caught:
            train.report({}, checkpoint=Checkpoint.from_dict({"x": print if rank == 1 else 1}))
        train.report({}, checkpoint=Checkpoint.from_dict({"x": 2}))
        return str(caught.value)

    result = fit(function, tmp_path)
    assert "could not be staged by rank 1: TypeError: state['x'] is a" in result.return_value
    assert result.checkpoint.to_dict() == {"x": 2}


def test_the_rank_whose_disk_is_full_is_the_cause_and_not_the_one_that_waited_for_it(tmp_path):
    def function():
        if train.get_context().get_world_rank() == 1:
            train.session._context("test").uploader._files = Failing()
        train.report({}, checkpoint=Checkpoint.from_dict({"x": 1}))

    for attempt in range(5):
        with pytest.raises(WorkerGroupError) as caught:
            fit(function, tmp_path, name=f"run-{attempt}")
        line = str(caught.value).splitlines()[2]
        assert line.startswith("  rank 1, "), str(caught.value)
        assert "report 1: the checkpoint could not be staged: [Errno 28]" in line


def test_a_commit_that_fails_is_caught_and_the_next_one_works(tmp_path, capsys):
    class NoRenames(LocalFiles):
        num_left = 1

        def rename(self, source, target):
            if target.name == "checkpoint_000002" and self.num_left:
                self.num_left -= 1
                raise OSError(errno.EIO, "Input/output error", str(target))
            super().rename(source, target)

    def function():
        told = []
        for i in range(4):
            try:
                train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))
            except StorageError as error:
                told.append(str(error))
        return told

    result = fit(function, tmp_path, seams=Seams(files=NoRenames()))
    (told,) = result.return_value
    assert "report 2: the checkpoint could not be committed: OSError: [Errno 5] Input/output error" in told
    assert [metrics["i"] for _, metrics in result.best_checkpoints] == [0, 2, 3]
    assert "the checkpoint of report 2 could not be committed" in capsys.readouterr().err


# Damage


def count(until, *, fail_at=None):
    def function():
        last = train.get_checkpoint()
        start = last.to_dict()["i"] + 1 if last else 0
        for i in range(start, until):
            train.report({"i": i, "start": start}, checkpoint=checkpoint_of("state", i, 100))
            if i == fail_at:
                os._exit(1)

    return function


@pytest.fixture(scope="module")
def failed_run(tmp_path_factory):
    """A run that failed after four checkpoints, of which three are kept."""
    path = tmp_path_factory.mktemp("runs")
    with pytest.raises(WorkerGroupError):
        fit(count(9, fail_at=3), path, 1, checkpoint_config=CheckpointConfig(num_to_keep=3))
    return path / "run"


@pytest.fixture
def damaged(failed_run, tmp_path):
    """A copy of that run, to be damaged."""
    shutil.copytree(failed_run, tmp_path / "run")
    return Layout(tmp_path / "run")


def flipped(at):
    def damage(path):
        data = bytearray(path.read_bytes())
        at_byte = int(at * (len(data) - 1))
        data[at_byte] ^= 1
        path.write_bytes(data)

    return damage


def linked(path):
    twin = path.parent.parent / f"twin-{path.name}"
    path.rename(twin)
    path.symlink_to(twin)


DAMAGE = {
    "zero bytes": lambda path: path.write_bytes(b""),
    "torn": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"}"),
    "first bit flipped": flipped(0),
    "a bit in the middle flipped": flipped(0.5),
    "another bit flipped": flipped(0.3),
    "removed": lambda path: path.unlink(),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a link out of the checkpoint": linked,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("victim", ["state.bin", "state.json", ".manifest.json"])
def test_a_damaged_file_in_the_newest_checkpoint_costs_that_checkpoint_only_and_is_told(
    damaged, tmp_path, victim, damage, capsys, caplog
):
    if (victim, damage) == (".manifest.json", "a link out of the checkpoint"):
        pytest.skip("a manifest says the same wherever it lies")
    DAMAGE[damage](damaged.root / "checkpoint_000004" / victim)
    result = fit(count(5), tmp_path, 1)
    assert result.metrics == {"i": 4, "start": 3}, "went on from the one before"
    told = capsys.readouterr().err + caplog.text
    assert "checkpoint_000004" in told
    if (victim, damage) == (".manifest.json", "removed"):
        assert "was committed and is gone, or its manifest is" in told
    else:
        assert "cannot be trusted and is passed over" in told
        assert (damaged.broken / "checkpoint_000004").exists(), "kept for a person to look at"
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3, 4]
    assert saved(result) == 4


def test_every_bit_of_a_manifest_counts(damaged):
    """But for spaces, and the name of the checksum itself."""
    from paceline._storage.commit import problem_with

    path = damaged.root / "checkpoint_000004" / ".manifest.json"
    whole = path.read_bytes()
    unnoticed = []
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if problem_with(path.parent) is None:
            unnoticed.append(at)
    tail = whole.rindex(b'"crc32"')
    assert all(at > tail for at in unnoticed), "what it says was altered and nobody noticed"
    assert len(unnoticed) <= len(b'"crc32": ')


@pytest.mark.parametrize("with_initial", [False, True])
def test_with_every_checkpoint_broken_the_run_begins_anew_or_from_what_it_was_given_and_says_so(
    damaged, tmp_path, with_initial, capsys
):
    for path in damaged.root.glob("checkpoint_*/state.bin"):
        path.write_bytes(b"")
    (tmp_path / "given").mkdir()
    given = Checkpoint.from_dict({"i": 6, "weights": np.zeros(1)}).to_directory(tmp_path / "given")
    result = DataParallelTrainer(
        count(9),
        run_config=RunConfig(name="run", storage_path=tmp_path),
        resume_from_checkpoint=Checkpoint(given) if with_initial else None,
    ).fit()
    assert result.metrics == {"i": 8, "start": 7 if with_initial else 0}
    told = capsys.readouterr().err
    assert told.count("cannot be trusted and is passed over") == 3
    assert "no checkpoint of the run is left" in told
    assert (str(given) in told) is with_initial
    assert len(list(damaged.broken.iterdir())) == 3


def broken_journals(whole):
    lines = whole.splitlines(keepends=True)
    yield "deleted", None
    yield "empty", b""
    yield "garbage", os.urandom(500)
    yield "garbage after it", whole + os.urandom(100)
    yield "a line of garbage after it", whole + b"deadbeef {}\n" + lines[-1]
    yield "no end of line", whole[:-1]
    yield "zeros after it", whole + bytes(4096)
    for number in range(0, len(lines), 4):
        before = b"".join(lines[:number])
        line = bytearray(lines[number])
        line[len(line) // 2] ^= 4
        yield f"a bit flipped in line {number}", before + line + b"".join(lines[number + 1 :])
        yield f"cut within line {number}", before + line[: len(line) // 2]


def test_whatever_became_of_the_journal_the_next_run_continues_from_the_newest_checkpoint(failed_run, tmp_path):
    whole = (failed_run / "journal.jsonl").read_bytes()
    for number, (what, data) in enumerate(broken_journals(whole)):
        root = tmp_path / f"run-{number}"
        shutil.copytree(failed_run, root)
        if data is None:
            (root / "journal.jsonl").unlink()
        else:
            (root / "journal.jsonl").write_bytes(data)
        read = Result.from_path(root)
        assert saved(read) == 3, f"{what}: a reader sees the newest"
        assert len(read.best_checkpoints) == 3, what
        result = fit(count(5), tmp_path, 1, name=root.name)
        assert result.metrics == {"i": 4, "start": 4}, what
        assert [metrics["i"] for _, metrics in result.best_checkpoints] == [1, 2, 3, 4], f"{what}: none was lost"


def places(whole):
    """All bytes of the journal, but for some within the long line that describes the run."""
    at = 0
    for line in whole.splitlines(keepends=True):
        within = range(len(line))
        if len(line) > 1000:
            within = [*within[:100], *within[100:-100:41], *within[-100:]]
        yield from (at + place for place in within)
        at += len(line)


def test_a_journal_cut_at_every_byte_shows_every_checkpoint_to_a_reader(damaged):
    whole = damaged.journal.read_bytes()
    for length in [*places(whole), len(whole)]:
        damaged.journal.write_bytes(whole[:length])
        result = Result.from_path(damaged.root)
        assert [metrics["i"] for _, metrics in result.best_checkpoints] == [1, 2, 3], f"cut at {length}"


def test_a_journal_with_any_byte_altered_shows_every_checkpoint_to_a_reader(damaged):
    whole = damaged.journal.read_bytes()
    for at in [*places(whole)][::3]:
        damaged.journal.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        result = Result.from_path(damaged.root)
        assert [metrics["i"] for _, metrics in result.best_checkpoints] == [1, 2, 3], f"altered at {at}"
    assert journal.read(damaged.journal) != []
