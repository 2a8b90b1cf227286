"""How a run is found again, whatever became of its journal."""

import os
import shutil
import tracemalloc

import msgspec
import pytest

from paceline import train
from paceline._control import journal
from paceline._control.events import CheckpointsFound, Committed, DriverStarted, Reported, encode
from paceline._control.recover import history_of, recovered
from paceline._control.run import Finished
from paceline._control.step import step
from paceline._core.codec import sealed
from paceline._storage import commit
from paceline._storage.depot import DiskDepot
from paceline._storage.files import LocalFiles
from paceline._storage.layout import Layout
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, Result, RunConfig, ScalingConfig


def count(until):
    def function():
        last = train.get_checkpoint()
        start = last.to_dict()["i"] + 1 if last else 0
        for i in range(start, until):
            train.report({"i": i, "start": start}, checkpoint=Checkpoint.from_dict({"i": i}))
        if until == 5:
            os._exit(1)

    return function


@pytest.fixture(scope="module")
def failed_run(tmp_path_factory):
    """A run that failed after five checkpoints, of which two are kept."""
    path = tmp_path_factory.mktemp("runs")
    config = RunConfig(name="run", storage_path=path, checkpoint_config=CheckpointConfig(num_to_keep=2))
    with pytest.raises(train.WorkerGroupError):
        DataParallelTrainer(count(5), scaling_config=ScalingConfig(2), run_config=config).fit()
    return path / "run"


@pytest.fixture
def layout(failed_run, tmp_path):
    """A copy of that run, to be damaged."""
    shutil.copytree(failed_run, tmp_path / "run")
    return Layout(tmp_path / "run")


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda fd: None)


def found_again(layout):
    found = recovered(DiskDepot(LocalFiles(), layout), 0.0)
    found.journal.close()
    return found


def on_disk(layout):
    return {manifest.record.name for manifest in commit.manifests(layout)}


def test_a_journal_cut_at_any_line_or_within_one_gives_back_every_checkpoint(layout, failed_run):
    whole = layout.journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    ends = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]
    for length in sorted({*ends, *(end - 7 for end in ends[1:]), *(end + 1 for end in ends[:-1])}):
        layout.journal.write_bytes(whole[:length])
        before = on_disk(layout)
        run = found_again(layout).run
        assert {record.name for record in run.checkpoints} == on_disk(layout) == before, f"cut at {length}"
        assert run.latest.seq == 5
        run, commands = step(run, DriverStarted(2, 0))
        assert commands, "the run can be started again"
        assert history_of(DiskDepot(LocalFiles(), layout))[0].latest.seq == 5, "a reader sees the same"


def test_a_lost_journal_is_rebuilt_from_the_manifests_and_the_run_goes_on(layout, tmp_path):
    layout.journal.unlink()
    result = DataParallelTrainer(
        count(7), scaling_config=ScalingConfig(2), run_config=RunConfig(name="run", storage_path=tmp_path)
    ).fit()
    assert result.metrics == {"i": 6, "start": 5}
    kinds = [type(event) for event in journal.read(layout.journal)]
    assert kinds[0] is CheckpointsFound


def test_a_commit_that_was_asked_for_but_not_done_is_finished(layout):
    """The driver died between the last rank's word and the rename."""
    events = journal.read(layout.journal)
    last = max(at for at, event in enumerate(events) if isinstance(event, Committed))
    seq = events[last].record.seq
    # As it was a moment before: the files staged, the word given, no manifest.
    name = events[last].record.name
    staged = layout.staged(1, seq)
    staged.mkdir(parents=True)
    layout.checkpoint(name).rename(staged / "gathered")
    (staged / "gathered" / ".manifest.json").unlink()
    layout.journal.write_bytes(b"".join(sealed(encode(event)) for event in events[:last]))
    run = found_again(layout).run
    assert run.latest.seq == seq
    assert commit.problem_with(layout.checkpoint(name)) is None


def test_staged_files_that_are_gone_cost_that_checkpoint_only(layout):
    events = journal.read(layout.journal)
    last = max(at for at, event in enumerate(events) if isinstance(event, Committed))
    shutil.rmtree(layout.checkpoint(events[last].record.name))
    layout.journal.write_bytes(b"".join(sealed(encode(event)) for event in events[:last]))
    run = found_again(layout).run
    assert run.latest.seq == events[last].record.seq - 1


def test_reports_in_a_workers_file_are_taken_in_once(layout):
    events = journal.read(layout.journal)
    reports = [at for at, event in enumerate(events) if isinstance(event, Reported)]
    layout.journal.write_bytes(b"".join(sealed(encode(event)) for event in events[: reports[-1]]))
    found_again(layout)
    found_again(layout)
    seen = [(e.attempt, e.rank, e.seq) for e in journal.read(layout.journal) if isinstance(e, Reported)]
    assert sorted(seen) == sorted((1, rank, seq) for rank in (0, 1) for seq in range(1, 6))


def test_a_journal_is_played_without_holding_all_of_it_in_memory(tmp_path):
    num_workers, num_reports = 50, 100
    layout = Layout(tmp_path)
    metrics = msgspec.Raw(msgspec.json.encode({"note": 200 * "x"}))
    with layout.journal.open("wb") as file:
        file.write(sealed(encode(DriverStarted(num_workers, 0))))
        for seq in range(1, num_reports + 1):
            for rank in range(num_workers):
                file.write(sealed(encode(Reported(1, rank, seq, metrics, 0.0, "x.py:1"))))
    tracemalloc.start()
    found = found_again(layout)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.run.num_reports == num_reports
    assert not any(isinstance(event, Reported) for event in found.history)
    assert [event.seq for event in found.reports_of_first()] == list(range(1, num_reports + 1))
    assert peak < layout.journal.stat().st_size / 2


def test_checkpoints_that_retention_had_given_up_are_deleted_when_the_driver_died_before(layout):
    source = layout.checkpoint("checkpoint_000004")
    manifest = commit.read_manifest(source)
    old = manifest.record.__class__(2, "checkpoint_000002", 1, manifest.record.metrics)
    shutil.copytree(source, layout.checkpoint(old.name))
    data = msgspec.json.encode(msgspec.structs.replace(manifest, record=old))
    (layout.checkpoint(old.name) / ".manifest.json").write_bytes(data)
    found_again(layout)
    assert on_disk(layout) == {"checkpoint_000004", "checkpoint_000005"}


def test_what_is_left_of_a_deletion_is_removed_and_other_directories_are_not(layout):
    """The driver died after the manifest of `checkpoint_000002` had gone, and before all of its files had."""
    for name in ("checkpoint_000002", "mine"):
        layout.checkpoint(name).mkdir()
        (layout.checkpoint(name) / "state.bin").write_text("x")
    (layout.checkpoint("checkpoint_000004") / ".manifest.json").unlink()
    found = found_again(layout)
    assert [record.name for record in found.run.checkpoints] == ["checkpoint_000005"]
    assert not layout.checkpoint("checkpoint_000002").exists()
    assert (layout.checkpoint("mine") / "state.bin").exists(), "who put it there is not known"
    assert (layout.checkpoint("checkpoint_000004") / "state.bin").exists(), "its manifest is lost: who knows why"


def commit_late(layout, lease):
    """As a driver that was paused until now would: in the journal there is no word of it."""
    source = layout.checkpoint("checkpoint_000005")
    manifest = commit.read_manifest(source)
    late = msgspec.structs.replace(manifest.record, seq=6, name="checkpoint_000006")
    shutil.copytree(source, layout.checkpoint(late.name))
    data = msgspec.json.encode(msgspec.structs.replace(manifest, record=late, lease=lease))
    (layout.checkpoint(late.name) / ".manifest.json").write_bytes(data)


@pytest.mark.parametrize(("lease", "counts"), [(0, True), (6, False), (7, True), (8, True)])
def test_a_checkpoint_that_the_journal_does_not_tell_of_counts_unless_its_driver_had_been_followed(
    layout, lease, counts
):
    with layout.journal.open("ab") as file:
        file.write(sealed(encode(DriverStarted(2, 0, lease=7))))
    commit_late(layout, lease)
    assert (history_of(DiskDepot(LocalFiles(), layout))[0].latest.seq == 6) == counts, "for a reader"
    assert (found_again(layout).run.latest.seq == 6) == counts, "for the next driver"
    assert ("checkpoint_000006" in on_disk(layout)) == counts
    assert "checkpoint_000005" in on_disk(layout) or counts


def test_a_late_commit_in_the_place_of_a_checkpoint_does_not_pass_for_it(layout):
    with layout.journal.open("ab") as file:
        file.write(sealed(encode(DriverStarted(2, 0, lease=7))))
    commit_late(layout, 6)
    shutil.rmtree(layout.checkpoint("checkpoint_000005"))
    layout.checkpoint("checkpoint_000006").rename(layout.checkpoint("checkpoint_000005"))
    manifest = layout.checkpoint("checkpoint_000005") / ".manifest.json"
    manifest.write_text(manifest.read_text().replace("checkpoint_000006", "checkpoint_000005"))
    assert history_of(DiskDepot(LocalFiles(), layout))[0].latest.seq == 4
    assert found_again(layout).run.latest.seq == 4
    assert on_disk(layout) == {"checkpoint_000004"}


def test_a_reader_changes_nothing(layout):
    def contents():
        return {str(p): p.stat().st_mtime_ns for p in layout.root.rglob("*")}

    layout.journal.write_bytes(layout.journal.read_bytes()[:-3])
    before = contents()
    Result.from_path(layout.root)
    assert contents() == before


def test_a_run_that_failed_is_finished_and_can_be_read(layout):
    run, _ = history_of(DiskDepot(LocalFiles(), layout))
    assert isinstance(run.phase, Finished)
    assert run.phase.ending == "failed"
    assert Result.from_path(layout.root).metrics == {"i": 4, "start": 0}
