"""The checkpoints of a run, on a disk and in a store: which files they hold, which one a name means, what is left."""

import types
import uuid
from pathlib import Path

import msgspec
import pytest
from pyarrow.fs import LocalFileSystem
from saving import Lost

from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles
from paceline._core.errors import RunHeldError, StorageError
from paceline._storage.arrow_store import ArrowStore
from paceline._storage.files import LocalFiles
from paceline._storage.journal_segments import JournalUploader
from paceline._storage.lease import UNFENCED
from paceline._storage.run_layout import MANIFEST, METADATA
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import LOG_UPLOAD_INTERVAL_S, RemoteRunStore, read_store_manifest
from paceline.testing import FakeClock

pytestmark = pytest.mark.usefixtures("without_fsync")


@pytest.fixture
def remote(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    run_store = RunLocation(f"memory://{uuid.uuid4().hex}", "run").open_run_store(
        LocalFiles(), is_new=True, fence=UNFENCED
    )
    run_store.layout.journal.write_bytes(b"started\n")
    return run_store


@pytest.fixture(params=["disk", "store"])
def run_store(request, tmp_path):
    if request.param == "store":
        return request.getfixturevalue("remote")
    (tmp_path / "run").mkdir()
    return RunLocation(str(tmp_path), "run").open_run_store(LocalFiles(), is_new=True, fence=UNFENCED)


def record(seq, name=None, attempt=1):
    return CheckpointRecord(seq, name or f"checkpoint_{seq:06d}", attempt, msgspec.Raw(b'{"loss":1.0}'))


def stage(run_store, record, texts_of_ranks):
    parts = []
    for rank, texts in texts_of_ranks.items():
        directory = run_store.layout.staged_rank(record.attempt, record.seq, rank)
        LocalFiles().make_dir(directory)
        for name, text in texts.items():
            (directory / name).write_text(text)
        parts.append(StagedFiles(rank, tuple(LocalFiles().seal(directory / name, name) for name in texts)))
        run_store.upload_staged(record, rank, directory, parts[-1].files)
    return parts


def save(run_store, record, texts_of_ranks=None):
    parts = stage(run_store, record, texts_of_ranks or {0: {"model": str(record.seq)}})
    differing = run_store.commit(record, parts, world_size=len(parts), created_at=5.0)
    run_store.remove_replaced(record)
    return differing


def list_committed(run_store):
    records = [manifest.record for manifest in run_store.list_manifests()]
    assert all(run_store.has_checkpoint(record) and run_store.find_problem(record) is None for record in records)
    return {(record.name, record.attempt, record.seq) for record in records}


def read(run_store, record):
    path, filesystem = run_store.locate_checkpoint(record)
    store = ArrowStore(filesystem or LocalFileSystem(), path, path)
    manifest = read_store_manifest(store)
    return {entry.path: store.read(manifest.keys.get(entry.path, entry.path)).decode() for entry in manifest.files}


def test_a_checkpoint_holds_the_files_of_all_ranks_and_the_lowest_rank_decides(run_store):
    texts = {rank: {"common": str(rank), "same": "s", f"of-{rank}": "x"} for rank in (2, 0, 1)}
    texts[0][METADATA] = "{}"
    assert save(run_store, record(7), texts) == ["common"], "only where ranks differ, and once"
    assert read(run_store, record(7)) == {"common": "0", "same": "s", "of-0": "x", "of-1": "x", "of-2": "x"}
    assert not run_store.layout.staged_rank(1, 7, 0).exists()


def test_the_newest_checkpoint_of_a_name_stays_and_other_names_are_left_alone(run_store):
    for each in (record(1, "best"), record(2), record(3, "other"), record(4, "best")):
        save(run_store, each)
    assert list_committed(run_store) == {("checkpoint_000002", 1, 2), ("other", 1, 3), ("best", 1, 4)}
    later = record(3, "best", attempt=2)
    for each in (later, later, record(4, "best")):  # Recovery may repeat a commit, or complete an older one.
        save(run_store, each)
        assert read(run_store, later) == {"model": "3"}
    run_store.delete(record(4, "best"))
    run_store.delete(record(2))
    assert list_committed(run_store) == {("best", 2, 3), ("other", 1, 3)}


@pytest.mark.parametrize(
    ("victim", "text", "problem"), [("shard", b"on", "shard has 2 bytes, expected 3"), (MANIFEST, b"{", "cannot read ")]
)
def test_a_damaged_checkpoint_is_detected_and_quarantined(run_store, victim, text, problem):
    assert "is missing" in run_store.find_problem(record(1))
    assert run_store.quarantine(record(1)) is None, "there is none"
    save(run_store, record(2))
    save(run_store, record(1), {0: {"model": "0"}, 1: {"shard": "one"}})
    path, filesystem = run_store.locate_checkpoint(record(1))
    key = f"{path}/.rank_1/{victim}" if filesystem is not None and victim == "shard" else f"{path}/{victim}"
    filesystem = filesystem or LocalFileSystem()
    with filesystem.open_output_stream(key) as file:
        file.write(text)
    assert problem in run_store.find_problem(record(1))
    place = run_store.quarantine(record(1))
    assert "/.broken/" in place
    assert not run_store.has_checkpoint(record(1))
    run_store.clear_staging()
    assert list_committed(run_store) == {("checkpoint_000002", 1, 2)}
    directory = place if Path(place).exists() else path
    assert filesystem.open_input_stream(f"{directory}/model").read() == b"0"


def test_only_the_driver_that_holds_the_run_changes_what_is_committed(remote):
    save(remote, record(1))
    parts = stage(remote, record(2), {0: {"model": "2"}})
    for act in (
        lambda: remote.commit(record(2), parts, world_size=1, created_at=0.0, fence=Lost()),
        lambda: remote.delete(record(1), Lost()),
        lambda: remote.quarantine(record(1), Lost()),
        lambda: remote.clear_staging(Lost()),
        lambda: remote.discard_staged(record(2), Lost()),
        lambda: save(remote, msgspec.structs.replace(record(1), num_bytes=1)),  # Another driver committed it.
    ):
        with pytest.raises(RunHeldError):
            act()
    assert list_committed(remote) == {("checkpoint_000001", 1, 1)}
    remote.commit(record(2), parts, world_size=1, created_at=0.0)
    assert read(remote, record(2)) == {"model": "2"}
    assert remote.read_journal() == b"started\n", "stored before any checkpoint is"


def test_staging_is_cleared_of_what_was_never_committed_and_of_nothing_else(remote):
    save(remote, record(1))
    save(remote, record(2, "best"))
    store = ArrowStore(remote.locate_run()[1], remote.locate_run()[0], remote.uri)
    before = store.list_entries()
    for each in (record(3), record(1, attempt=2), record(4, "best")):
        stage(remote, each, {0: {"model": "m"}, 1: {"shard": "s"}})
    remote.clear_staging()
    assert store.list_entries() == before
    assert not remote.layout.staging.exists()


def test_refuses_a_file_that_changes_during_its_upload_and_a_commit_of_missing_files(remote):
    parts = stage(remote, record(1), {0: {"model": "before"}})
    directory = remote.layout.staged_rank(1, 1, 0)
    directory.mkdir()
    (directory / "model").write_text("after!")
    with pytest.raises(StorageError, match="model changed while it was uploaded"):
        remote.upload_staged(record(1), 0, directory, parts[0].files)
    remote.discard_staged(record(1))
    with pytest.raises(StorageError, match="model is missing"):
        remote.commit(record(1), parts, world_size=1, created_at=0.0)
    with pytest.raises(StorageError, match="NO_UPLOAD needs a run on a disk"):
        remote.commit(record(1), [*parts, StagedFiles(1, (), in_place=True)], world_size=1, created_at=0.0)


def test_a_log_is_uploaded_now_and_then_and_an_outage_is_reported_once(layout, tmp_path, monkeypatch, caplog):
    clock = FakeClock(1000.0)
    monkeypatch.setattr("paceline._storage.run_store.time", types.SimpleNamespace(monotonic=clock.now))
    root = tmp_path / "store"
    store = ArrowStore(LocalFileSystem(), str(root), "s3://bucket/run")
    remote = RemoteRunStore(store, layout, journal_uploader=JournalUploader(store, layout.journal))
    log = layout.log(1, 0)
    log.parent.mkdir(parents=True)
    layout.log(1, 1).touch()
    layout.log(1, 2).write_text("x")
    monkeypatch.setattr("paceline._storage.run_store._SMALL_LOG_BYTES", 3)
    every_s = LOG_UPLOAD_INTERVAL_S
    for after_s, num_stored in ((0, 0), (every_s, 2), (every_s - 1, 2), (1, 4), (every_s * 4 / 3 - 1, 4), (1, 6)):
        clock.advance(after_s)
        with layout.journal.open("a") as journal, log.open("a") as file:
            journal.write("line\n")
            file.write("x")
        remote.upload_journal()
        assert [entry.size for entry in store.list_entries("logs")] == [num_stored, 1] * bool(num_stored)
    for _ in range(2):
        root.rename(tmp_path / "away").with_name("store").touch()  # A file in its place: every write fails.
        for _ in range(3):
            with layout.journal.open("a") as journal:
                journal.write("line\n")
            remote.upload_journal()
        root.unlink()
        (tmp_path / "away").rename(root)
        remote.upload_journal()
    assert [message.partition(" to ")[0] for message in caplog.messages] == ["cannot upload the journal or a log"] * 2
    assert remote.read_journal() == b"line\n" * 12
