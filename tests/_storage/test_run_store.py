"""The checkpoints of a run, on a disk and in a store: which files they hold, which one a name means, what is left."""

import pickle
import re
import types
import uuid
from pathlib import Path

import msgspec
import pytest
from pyarrow.fs import LocalFileSystem
from saving import Lost

from paceline._core.errors import RunHeldError, StorageError
from paceline._engine.messages import CheckpointRecord, StagedFiles
from paceline._storage.arrow_store import ArrowStore
from paceline._storage.files import LocalFiles
from paceline._storage.journal_segments import JournalUploader
from paceline._storage.run_layout import MANIFEST, METADATA
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import LOG_UPLOAD_INTERVAL_S, RemoteRunStore, checkpoint_prefix
from paceline.testing import FakeClock

pytestmark = pytest.mark.usefixtures("without_fsync")


@pytest.fixture
def location(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    return RunLocation(f"memory://{uuid.uuid4().hex}", "run")


@pytest.fixture
def remote(location):
    run_store = location.open_run_store(LocalFiles(), is_new=True)
    run_store.layout.journal.write_bytes(b"started\n")
    return run_store


@pytest.fixture(params=["disk", "store"])
def run_store(request, tmp_path):
    if request.param == "store":
        return request.getfixturevalue("remote")
    (tmp_path / "run").mkdir()
    return RunLocation(str(tmp_path), "run").open_run_store(LocalFiles(), is_new=True)


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
    return run_store.commit(record, parts, world_size=len(parts), created_at=5.0)


def list_committed(run_store):
    records = [manifest.record for manifest in run_store.list_manifests()]
    assert all(run_store.has_checkpoint(record) and run_store.find_problem(record) is None for record in records)
    return {(record.name, record.attempt, record.seq) for record in records}


def read(run_store, record):
    [manifest] = [manifest for manifest in run_store.list_manifests() if manifest.record == record]
    path, filesystem = run_store.locate_checkpoint(record)
    filesystem = filesystem or LocalFileSystem()
    keys = {entry.path: f"{path}/{manifest.keys.get(entry.path, entry.path)}" for entry in manifest.files}
    return {name: filesystem.open_input_stream(key).read().decode() for name, key in keys.items()}


def test_a_checkpoint_holds_the_files_of_all_ranks_and_the_lowest_rank_decides(run_store):
    texts = {
        2: {"common": "C", "same": "s", "two": "2"},
        0: {"common": "A", "same": "s", METADATA: "{}"},
        1: {"common": "B", "same": "s", "one": "1"},
    }
    assert save(run_store, record(7), texts) == ["common"], "only where ranks differ, and once"
    assert read(run_store, record(7)) == {"common": "A", "same": "s", "one": "1", "two": "2"}
    [manifest] = run_store.list_manifests()
    assert (manifest.world_size, manifest.created_at, manifest.lease) == (3, 5.0, 0)
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
    ("victim", "text", "problem"),
    [
        ("shard", None, "shard( is missing|: No such file)"),
        ("shard", b"on", "shard has 2 bytes, expected 3"),
        (MANIFEST, b"{", "cannot read .*manifest"),
    ],
)
def test_a_damaged_checkpoint_is_found_and_kept_in_quarantine(run_store, victim, text, problem):
    assert "is missing" in run_store.find_problem(record(1))
    assert run_store.quarantine(record(1)) is None, "there is none"
    save(run_store, record(2))
    save(run_store, record(1), {0: {"model": "0"}, 1: {"shard": "one"}})
    path, filesystem = run_store.locate_checkpoint(record(1))
    key = f"{path}/.rank_1/{victim}" if filesystem is not None and victim == "shard" else f"{path}/{victim}"
    filesystem = filesystem or LocalFileSystem()
    filesystem.delete_file(key)
    if text is not None:
        with filesystem.open_output_stream(key) as file:
            file.write(text)
    assert re.search(problem, run_store.find_problem(record(1)))
    place = run_store.quarantine(record(1))
    assert "/.broken/" in place
    assert not run_store.has_checkpoint(record(1))
    run_store.clear_staging()
    assert list_committed(run_store) == {("checkpoint_000002", 1, 2)}
    kept = place if Path(place).exists() else path
    assert filesystem.open_input_stream(f"{kept}/model").read() == b"0"


def test_only_the_driver_that_holds_the_run_changes_what_is_committed(remote):
    save(remote, record(1))
    parts = stage(remote, record(2), {0: {"model": "2"}})
    for act in (
        lambda: remote.commit(record(2), parts, world_size=1, created_at=0.0, fence=Lost()),
        lambda: remote.delete(record(1), Lost()),
        lambda: remote.quarantine(record(1), Lost()),
        lambda: remote.clear_staging(Lost()),
        lambda: save(remote, msgspec.structs.replace(record(1), num_bytes=1)),  # Another driver committed it.
    ):
        with pytest.raises(RunHeldError):
            act()
    assert list_committed(remote) == {("checkpoint_000001", 1, 1)}
    remote.commit(record(2), parts, world_size=1, created_at=0.0)
    assert read(pickle.loads(pickle.dumps(remote)), record(2)) == {"model": "2"}
    assert remote.read_journal() == b"started\n", "stored before any checkpoint is"


def test_staging_is_cleared_of_what_was_never_committed_and_of_nothing_else(location, remote):
    save(remote, record(1))
    save(remote, record(2, "best"))
    store = location.open_store()
    before = store.list_entries()
    for each in (record(3), record(1, attempt=2), record(4, "best")):
        stage(remote, each, {0: {"model": "m"}, 1: {"shard": "s"}})
    remote.discard_staged(record(4, "best"))
    assert len(store.list_entries()) == len(before) + 4
    remote.clear_staging()
    assert store.list_entries() == before
    assert not remote.layout.staging.exists()


def test_refuses_a_file_that_changes_during_its_upload_and_a_commit_of_missing_files(location, remote):
    parts = stage(remote, record(1), {0: {"model": "before"}})
    directory = remote.layout.staged_rank(1, 1, 0)
    directory.mkdir()
    (directory / "model").write_text("after!")
    with pytest.raises(StorageError, match="model changed while it was uploaded"):
        remote.upload_staged(record(1), 0, directory, parts[0].files)
    location.open_store().delete_all(checkpoint_prefix(record(1)))
    with pytest.raises(StorageError, match="model is missing"):
        remote.commit(record(1), parts, world_size=1, created_at=0.0)
    with pytest.raises(StorageError, match="NO_UPLOAD needs a run on a disk"):
        remote.commit(record(1), [*parts, StagedFiles(1, (), in_place=True)], world_size=1, created_at=0.0)
    assert list_committed(remote) == set()


def test_logs_are_uploaded_now_and_then_and_an_outage_is_reported_once(layout, tmp_path, monkeypatch, caplog):
    clock = FakeClock(1000.0)
    monkeypatch.setattr("paceline._storage.run_store.time", types.SimpleNamespace(monotonic=clock.now))
    root = tmp_path / "store"
    store = ArrowStore(LocalFileSystem(), str(root), "s3://bucket/run")
    remote = RemoteRunStore(store, layout, journal_uploader=JournalUploader(store, layout.journal))
    log = layout.log(1, 0)
    log.parent.mkdir(parents=True)
    for after_s, stored in (
        (0, None), (LOG_UPLOAD_INTERVAL_S, "xx"), (LOG_UPLOAD_INTERVAL_S - 1, "xx"), (1, "xxxx"),
    ):  # fmt: skip
        clock.advance(after_s)
        with layout.journal.open("a") as journal, log.open("a") as file:
            journal.write("line\n")
            file.write("x")
        remote.upload_journal()
        uploaded = root / log.relative_to(layout.root)
        assert (uploaded.read_text() if uploaded.exists() else None) == stored
    assert remote.read_journal() == b"line\n" * 4

    for path in (layout.stacks(1), layout.root / "result.json", layout.root / "mine.txt"):
        path.write_text("x")
    for _ in range(2):
        root.rename(tmp_path / "away")
        root.touch()  # A file in its place: every write fails.
        for _ in range(2):
            with layout.journal.open("a") as journal:
                journal.write("line\n")
            remote.upload_journal()
        root.unlink()
        (tmp_path / "away").rename(root)
        remote.upload_journal()
    assert [message.partition(" to ")[0] for message in caplog.messages] == ["cannot upload the journal or a log"] * 2
    remote.close()
    stored = {entry.key for entry in store.list_entries() if not entry.key.startswith("journal")}
    assert stored == {"logs/attempt_1/rank_0.log", "logs/attempt_1/stacks.txt", "result.json"}
    assert remote.read_journal() == b"line\n" * 8
