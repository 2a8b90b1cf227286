"""Recovery of a run, whatever happened to its journal."""

import os
import shutil
import tracemalloc
import uuid
from types import SimpleNamespace

import msgspec
import pytest

from paceline import train
from paceline._control import journal, recovery
from paceline._control.events import (
    CheckpointsFound,
    CheckpointVerified,
    Committed,
    DriverStarted,
    Reported,
    encode_event,
)
from paceline._control.recovery import (
    RunReplay,
    _finish_commits,
    _secure_damaged_checkpoints,
    has_lost_journal,
    iter_reports_so_far,
    load_history,
    load_outline,
    rebuild_events,
    recover_run,
    survey_checkpoints,
)
from paceline._control.run import RankProgress, Run
from paceline._control.step import step
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.codec import seal_line
from paceline._core.reductions import ReductionMark
from paceline._storage import commit
from paceline._storage.files import LocalFiles
from paceline._storage.lease import UNFENCED
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import DiskRunStore
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, Result, RunConfig, ScalingConfig
from written_runs import read_events


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
    return RunLayout(tmp_path / "run")


@pytest.fixture(autouse=True)
def synced(monkeypatch):
    """The inodes that were synced; without waiting for the disk."""
    synced = set()
    monkeypatch.setattr("os.fsync", lambda fd: synced.add(os.fstat(fd).st_ino))
    return synced


def is_synced(layout, name, synced):
    directory = layout.checkpoint(name)
    return all(path.stat().st_ino in synced for path in (layout.root, directory, directory / ".manifest.json"))


def recover(layout):
    recovered = recover_run(DiskRunStore(LocalFiles(), layout), 0.0)
    recovered.journal.close()
    return recovered


def read_run(layout):
    return load_history(DiskRunStore(LocalFiles(), layout))[0]


def on_disk(layout):
    return {manifest.record.name for manifest in commit.iter_manifests(layout)}


def test_a_journal_cut_at_any_line_or_within_one_gives_back_every_checkpoint(layout, failed_run):
    content = layout.journal.read_bytes()
    lines = content.splitlines(keepends=True)
    ends = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]
    for length in sorted({*ends, *(end - 7 for end in ends[1:]), *(end + 1 for end in ends[:-1])}):
        layout.journal.write_bytes(content[:length])
        before = on_disk(layout)
        run = recover(layout).run
        assert {record.name for record in run.checkpoints} == on_disk(layout) == before, f"cut at {length}"
        assert run.latest.seq == 5
        run, commands = step(run, DriverStarted(2, 0))
        assert commands, "the run can be started again"
        assert read_run(layout).latest.seq == 5, "a reader sees the same"


def test_a_lost_journal_is_rebuilt_from_the_manifests_and_the_run_goes_on(layout, tmp_path, synced):
    layout.journal.unlink()
    assert all(is_synced(layout, record.name, synced) for record in recover(layout).run.checkpoints)
    layout.journal.unlink()
    result = DataParallelTrainer(
        count(7), scaling_config=ScalingConfig(2), run_config=RunConfig(name="run", storage_path=tmp_path)
    ).fit()
    assert result.metrics == {"i": 6, "start": 5}
    # The metrics are those of the workers' own files.
    assert result.metrics_dataframe["i"].tolist() == list(range(7))
    assert [event.seq for event in read_events(layout.root, Reported) if event.rank == 1] == list(range(1, 8))


def test_a_lost_journal_of_several_attempts_gives_back_the_reports_that_count(layout, tmp_path):
    """Attempts 1 to 5: up to report 5; none reported in 2; from 4 on, in 3; from 3 on, twice."""
    for attempt, first, last in ((3, 4, 5), (4, 3, 4), (5, 3, 6)):
        for rank in (0, 1):
            path = layout.reports(attempt, rank)
            path.parent.mkdir(exist_ok=True)
            metrics = msgspec.Raw(msgspec.json.encode({"i": attempt}))
            seqs = range(first, last + 1)
            path.write_bytes(
                b"".join(seal_line(encode_event(Reported(attempt, rank, s, metrics, s, "x.py:1"))) for s in seqs)
            )
    layout.reports(2, 0).parent.mkdir()
    layout.reports(2, 0).touch()
    layout.journal.unlink()
    before = on_disk(layout)
    assert Result.from_path(layout.root).metrics_dataframe["i"].tolist() == [0, 1, 5, 5, 5, 5], "a reader sees it too"
    run = recover(layout).run
    assert {record.name for record in run.checkpoints} == on_disk(layout) == before
    assert (run.attempt, run.num_reports, run.size) == (5, 6, 2)
    assert recover(layout).run == run, "the journal holds it now"
    assert Result.from_path(layout.root).metrics_dataframe["i"].tolist() == [0, 1, 5, 5, 5, 5]
    assert step(run, DriverStarted(2, 0))[1]


def test_a_rebuilt_journal_starts_the_attempts_without_reports_too(tmp_path):
    layout = RunLayout(tmp_path)
    for attempt in (1, 3):
        layout.reports(attempt, 0).parent.mkdir(parents=True)
        report = Reported(attempt, 0, 1, msgspec.Raw(b"{}"), 0.0, "x.py:1")
        layout.reports(attempt, 0).write_bytes(seal_line(encode_event(report)))
    found = rebuild_events(SimpleNamespace(layout=layout, list_manifests=list))
    assert sum(isinstance(event, DriverStarted) for event in found) == 3


def test_without_a_journal_and_a_valid_manifest_no_checkpoint_directory_is_overwritten(layout, tmp_path, caplog):
    layout.journal.unlink()
    manifest = layout.checkpoint("checkpoint_000005") / ".manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    fit = DataParallelTrainer(
        count(6), scaling_config=ScalingConfig(2), run_config=RunConfig(name="run", storage_path=tmp_path)
    ).fit
    (layout.checkpoint("checkpoint_000004") / ".manifest.json").rename(tmp_path / "kept")
    files = sorted(path for path in layout.root.rglob("*") if ".lease" not in path.parts)
    with pytest.raises(
        train.StorageError, match=r"no valid manifest: checkpoint_000004, checkpoint_000005\.(.|\n)*hint"
    ):
        fit()
    assert sorted(path for path in layout.root.rglob("*") if ".lease" not in path.parts) == files
    # With one that is valid, the run goes on from it, and the others are set aside.
    (tmp_path / "kept").rename(layout.checkpoint("checkpoint_000004") / ".manifest.json")
    assert fit().metrics == {"i": 5, "start": 4}
    set_aside = layout.quarantine / "checkpoint_000005"
    assert (set_aside / "state.json").exists()
    assert f"checkpoint_000005 has no valid manifest; moved to {set_aside}" in caplog.messages


@pytest.mark.parametrize(("count", "named"), [(5, r"a, b, c, d, e\. A new"), (6, r"a, b, c, d, e and 1 more\. A new")])
def test_five_directories_without_a_valid_manifest_are_named(count, named):
    store = SimpleNamespace(uri="/run", find_damaged=lambda: list("abcdef"[:count]), list_manifests=list)
    with pytest.raises(train.StorageError, match=f"no valid manifest: {named}"):
        _secure_damaged_checkpoints(store, UNFENCED)


@pytest.mark.parametrize("staged_files_are_there", [True, False])
def test_a_commit_that_was_asked_for_but_not_done_is_finished_if_its_files_are_there(layout, staged_files_are_there):
    """The driver died between the last rank's word and the rename."""
    events = journal.read_events(layout.journal)
    last = max(at for at, event in enumerate(events) if isinstance(event, Committed))
    seq, name = events[last].record.seq, events[last].record.name
    # As it was a moment before: the files staged, the word given, no manifest.
    staged = layout.staged_checkpoint(1, seq)
    staged.mkdir(parents=True)
    layout.checkpoint(name).rename(staged / "gathered")
    (staged / "gathered" / ".manifest.json").unlink()
    if not staged_files_are_there:
        shutil.rmtree(staged)
    layout.journal.write_bytes(b"".join(seal_line(encode_event(event)) for event in events[:last]))
    run = recover(layout).run
    assert run.latest.seq == (seq if staged_files_are_there else seq - 1)
    assert commit.find_problem(layout.checkpoint(run.latest.name)) is None


def test_a_commit_that_cannot_be_finished_does_not_keep_the_later_ones_from_it():
    finished = []

    def finish(record, parts, **rest):
        if record == 1:
            raise FileNotFoundError("its files are gone")
        finished.append(record)

    asked = [SimpleNamespace(record=record, parts=()) for record in (1, 2)]
    replay = SimpleNamespace(run=SimpleNamespace(size=2), unanswered_commits=lambda: asked)
    store = SimpleNamespace(commit=finish, remove_replaced=lambda record, fence: None)
    _finish_commits(store, replay, 0.0, UNFENCED)
    assert finished == [2]


def test_reports_in_a_workers_file_are_recovered_once(layout):
    events = journal.read_events(layout.journal)
    reports = [at for at, event in enumerate(events) if isinstance(event, Reported)]
    layout.journal.write_bytes(b"".join(seal_line(encode_event(event)) for event in events[: reports[-1]]))
    recover(layout)
    recover(layout)
    reported = [(event.attempt, event.rank, event.seq) for event in read_events(layout.root, Reported)]
    assert sorted(reported) == sorted((1, rank, seq) for rank in (0, 1) for seq in range(1, 6))


@pytest.mark.parametrize("num_known", [0, 1, 2, 17, 37, 38, 39, 40])
def test_reports_that_a_journal_lacks_are_found_near_the_end_of_a_long_file(tmp_path, monkeypatch, num_known):
    step_bytes, layout = 1000, RunLayout(tmp_path)
    monkeypatch.setattr(recovery, "_UNREAD_STEP_BYTES", step_bytes)
    reports = [Reported(1, 0, seq, msgspec.Raw(b"{}"), 0.0, "x.py:1") for seq in range(1, 41)]
    lines = [seal_line(encode_event(report)) for report in reports]
    own = layout.reports(1, 0)
    own.parent.mkdir(parents=True)
    own.write_bytes(b"".join(lines))
    layout.journal.write_bytes(seal_line(encode_event(DriverStarted(1, 0))) + b"".join(lines[:num_known]))
    _, history = load_history(DiskRunStore(LocalFiles(), layout))
    assert [event for event in history if isinstance(event, Reported)] == reports
    phase = step(Run(), DriverStarted(1, 0))[0].phase
    phase = msgspec.structs.replace(phase, progress=RankProgress.start_at(1, num_known))
    with own.open("rb") as file:
        recovery._skip_known_reports(file, own, phase, 0)
        first_unknown = sum(map(len, lines[:num_known]))
        assert file.tell() <= first_unknown
        size = own.stat().st_size
        assert file.tell() >= min(first_unknown, size - step_bytes) - 2 * step_bytes, "most of it is not read"


def test_the_journal_of_a_run_is_lost_if_a_driver_had_it_and_reports_or_checkpoints_are_there(layout, tmp_path):
    assert has_lost_journal(layout.root)
    shutil.rmtree(layout.root / "reports", ignore_errors=True)
    assert has_lost_journal(layout.root), "it has checkpoints"
    layout.lease.rename(tmp_path / "lease")
    assert not has_lost_journal(layout.root), "no driver had it"
    bare = RunLayout(tmp_path / "bare")
    bare.lease.mkdir(parents=True)
    assert not has_lost_journal(bare.root), "a driver took it, and nothing followed"
    bare.reports(1, 0).parent.mkdir(parents=True)
    assert has_lost_journal(bare.root), "an attempt had begun"


def test_the_journal_of_a_run_in_a_store_is_read_and_a_line_that_cannot_be_is_named(layout):
    events = read_events(layout.root)
    disk = DiskRunStore(LocalFiles(), layout)

    def stored(data):
        return SimpleNamespace(
            uri="s3://bucket/run",
            layout=RunLayout(layout.root / "spool"),
            read_journal=lambda: data,
            list_manifests=disk.list_manifests,
            checkpoint_uri=disk.checkpoint_uri,
            has_checkpoint=disk.has_checkpoint,
        )

    data = layout.journal.read_bytes()
    run, history, last = load_outline(stored(data))
    assert (run, last) == (load_outline(disk)[0], load_outline(disk)[2])
    assert load_history(stored(data)) == load_history(disk)
    assert load_history(stored(data))[1][:-1] == events
    assert [*history] == load_outline(disk)[1]
    num_lines = data.count(b"\n")
    with pytest.raises(train.StorageError, match=rf"s3://bucket/run: line {num_lines + 1} of the journal cannot be"):
        load_history(stored(data + seal_line(b'{"type":"from_a_later_version"}')))


def test_a_journal_is_played_without_holding_all_of_it_in_memory(tmp_path):
    num_workers, num_reports = 50, 100
    layout = RunLayout(tmp_path)
    metrics = msgspec.Raw(msgspec.json.encode({"note": 200 * "x"}))
    with layout.journal.open("wb") as file:
        file.write(seal_line(encode_event(DriverStarted(num_workers, 0))))
        for seq in range(1, num_reports + 1):
            for rank in range(num_workers):
                file.write(seal_line(encode_event(Reported(1, rank, seq, metrics, 0.0, "x.py:1"))))
    tracemalloc.start()
    recovered = recover(layout)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert recovered.run.num_reports == num_reports
    assert not any(isinstance(event, Reported) for event in recovered.history)
    found = [(event.rank, event.seq) for event in recovered.iter_rank_0_reports()]
    assert found == [(0, seq) for seq in range(1, num_reports + 1)]
    assert peak < layout.journal.stat().st_size / 2


def copy_checkpoint(layout, seq, *, lease=0):
    """The newest, as another: in the journal there is no word of it."""
    source = layout.checkpoint("checkpoint_000005")
    manifest = commit.read_manifest(source)
    record = msgspec.structs.replace(manifest.record, seq=seq, name=f"checkpoint_{seq:06d}")
    shutil.copytree(source, layout.checkpoint(record.name))
    data = msgspec.json.encode(msgspec.structs.replace(manifest, record=record, lease=lease))
    (layout.checkpoint(record.name) / ".manifest.json").write_bytes(data)


def test_checkpoints_that_retention_had_given_up_are_deleted_when_the_driver_died_before(layout):
    copy_checkpoint(layout, 2)
    recover(layout)
    assert on_disk(layout) == {"checkpoint_000004", "checkpoint_000005"}


def test_the_rest_of_a_deletion_is_removed_and_other_directories_are_not(layout, caplog):
    """The driver died after `checkpoint_000002` was moved away, and before all of its files had gone."""
    deleted = layout.trash / "deleted-1-1-2"
    for directory in (deleted, layout.checkpoint("mine")):
        directory.mkdir(parents=True)
        (directory / "state.bin").write_text("x")
    (layout.checkpoint("checkpoint_000004") / ".manifest.json").unlink()
    recovered = recover(layout)
    assert [record.name for record in recovered.run.checkpoints] == ["checkpoint_000005"]
    assert not deleted.exists()
    assert (layout.checkpoint("mine") / "state.bin").exists(), "who put it there is not known"
    assert (layout.checkpoint("checkpoint_000004") / "state.bin").exists(), "its manifest is lost: who knows why"
    [warning] = caplog.messages
    assert warning == f"{layout.checkpoint('checkpoint_000004')} was committed, but it or its manifest is missing"


@pytest.fixture
def taken_over(layout):
    """Its driver was followed by another, of lease 7: whoever commits with an older one was paused until now."""
    with layout.journal.open("ab") as file:
        file.write(seal_line(encode_event(DriverStarted(2, 0, lease=7))))
    return layout


@pytest.mark.parametrize(("lease", "counts"), [(0, True), (6, False), (7, True), (8, True)])
def test_a_checkpoint_that_the_journal_does_not_tell_of_counts_unless_its_driver_had_been_followed(
    taken_over, lease, counts, synced
):
    copy_checkpoint(taken_over, 6, lease=lease)
    assert (read_run(taken_over).latest.seq == 6) == counts, "for a reader"
    assert (recover(taken_over).run.latest.seq == 6) == counts, "for the next driver"
    assert ("checkpoint_000006" in on_disk(taken_over)) == counts
    assert "checkpoint_000005" in on_disk(taken_over) or counts
    assert not counts or is_synced(taken_over, "checkpoint_000006", synced), "its driver may have died before"


def test_a_late_commit_in_the_place_of_a_checkpoint_does_not_pass_for_it(taken_over):
    copy_checkpoint(taken_over, 6, lease=6)
    shutil.rmtree(taken_over.checkpoint("checkpoint_000005"))
    taken_over.checkpoint("checkpoint_000006").rename(taken_over.checkpoint("checkpoint_000005"))
    manifest = taken_over.checkpoint("checkpoint_000005") / ".manifest.json"
    manifest.write_text(manifest.read_text().replace("checkpoint_000006", "checkpoint_000005"))
    assert read_run(taken_over).latest.seq == 4
    assert recover(taken_over).run.latest.seq == 4
    assert on_disk(taken_over) == {"checkpoint_000004"}


def test_a_late_commit_in_a_store_leaves_the_checkpoint_of_its_name_in_a_later_attempt_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path))
    location = RunLocation(f"memory://{uuid.uuid4().hex}", "run")
    store = location.open_run_store(LocalFiles(), is_new=True, fence=UNFENCED)
    store.layout.journal.touch()
    late, kept = (CheckpointRecord(6, "checkpoint_000006", attempt, msgspec.Raw(b"{}")) for attempt in (1, 2))
    replay = RunReplay()
    for event in (CheckpointsFound((kept,)), DriverStarted(2, 0, lease=7)):
        replay.apply_event(event)
    for record, lease in ((kept, 7), (late, 6)):
        fence = SimpleNamespace(number=lease, check=lambda: None)
        store.commit(record, (), world_size=1, created_at=0.0, fence=fence)
    assert survey_checkpoints(store, replay) == CheckpointsFound()


def test_a_reader_of_a_run_that_failed_changes_nothing(layout):
    def contents():
        return {str(p): p.stat().st_mtime_ns for p in layout.root.rglob("*")}

    assert read_run(layout).phase.ending == "failed"
    layout.journal.write_bytes(layout.journal.read_bytes()[:-3])
    before = contents()
    assert Result.from_path(layout.root).metrics == {"i": 4, "start": 0}
    assert contents() == before


def test_the_last_report_that_counts_is_the_one_before_the_checkpoint_the_run_went_back_to(tmp_path):
    """And every report so far is there for readers, reduced over its ranks."""
    record = CheckpointRecord(2, "checkpoint_000002", 1, msgspec.Raw(b"{}"))
    mark = (ReductionMark(("loss",), "mean"),)
    reports = [
        Reported(1, rank, seq, msgspec.Raw(b'{"loss":%d}' % (seq + 2 * rank)), 0.0, "x.py:1", reduce=mark)
        for seq in (1, 2, 3)
        for rank in (0, 1)
    ]
    restarted = [DriverStarted(2, 0), CheckpointVerified(2, 2)]
    story = [DriverStarted(2, 0), *reports[:4], Committed(record), *reports[4:], *restarted]
    layout = RunLayout(tmp_path)
    layout.journal.write_bytes(b"".join(seal_line(encode_event(event)) for event in story))
    run, history, last = load_outline(DiskRunStore(LocalFiles(), layout))
    assert (run.num_reports, last.seq, last.metrics) == (2, 2, {"loss": 3.0})
    assert not any(isinstance(event, Reported) for event in history)
    assert [(each.seq, each.metrics["loss"]) for each in iter_reports_so_far(layout)] == [(1, 2), (2, 3), (3, 4)]
    assert recover(layout).last_report.seq == 2
