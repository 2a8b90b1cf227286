"""A run directory that somebody else wrote: it runs nothing, leads nowhere, and crashes nobody."""

import contextlib
import json
import os
import pickle
import shutil
import stat
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from paceline import train
from paceline._control import events
from paceline._control.events import CheckpointVerified, Committed, DriverStarted, Retention, WorkerFailed, encode_event
from paceline._control.journal import JournalVersionError
from paceline._control.recovery import recover_run
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.codec import seal_line
from paceline._core.system import SystemClock
from paceline._engine.messages import WorkerFailure
from paceline._storage import commit
from paceline._storage.files import LocalFiles
from paceline._storage.lease import UNFENCED, acquire_lease
from paceline._storage.lease_stores import DiskLeaseStore
from paceline._storage.run_layout import RunLayout, is_checkpoint_name
from paceline._storage.run_store import DiskRunStore
from paceline.train import Checkpoint, PacelineError, Result, RunConfig, StorageError, WorkerGroupError


def function():
    last = train.get_checkpoint()
    start = last.to_dict()["i"] + 1 if last else 0
    for i in range(start, 4):
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i, "w": np.zeros(50)}))
        if i == 2 and start == 0:
            train.get_checkpoint().set_metadata({"note": "good"})
            os._exit(1)


@pytest.fixture(scope="module")
def failed_run(fit_in, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    with pytest.raises(WorkerGroupError):
        fit_in(path, function, 1)
    return path / "run"


@pytest.fixture
def run(failed_run, tmp_path):
    """A copy of a run that failed after three checkpoints, to be tampered with."""
    shutil.copytree(failed_run, tmp_path / "run")
    return RunLayout(tmp_path / "run")


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def readers(layout):
    """Everything that opens a run directory."""

    def each(read):
        def reader():
            for directory in sorted(layout.root.glob("checkpoint_*")):
                read(Checkpoint(directory))

        return reader

    def recover():
        lease = acquire_lease(DiskLeaseStore(layout.lease), ttl_s=30.0, clock=SystemClock(), say=lambda text: None)
        try:
            recover_run(DiskRunStore(LocalFiles(), layout), 0.0).journal.close()
        finally:
            lease.close()

    return {
        "Result": lambda: (Result.from_path(layout.root).metrics_dataframe, Result.from_path(layout.root).return_value),
        "to_dict": each(lambda checkpoint: checkpoint.to_dict()),
        "get_metadata": each(lambda checkpoint: checkpoint.get_metadata()),
        "verify": each(lambda checkpoint: checkpoint.verify()),
        "to_directory": each(lambda checkpoint: shutil.rmtree(checkpoint.to_directory())),
        "recovered": recover,
        "fit": train.DataParallelTrainer(
            function, run_config=RunConfig(name=layout.root.name, storage_path=layout.root.parent)
        ).fit,
    }


# Readable refusals. Anything else that a reader raises is a crash.
REFUSALS = (PacelineError, JournalVersionError, ValueError, RuntimeError)


def open_with_every_reader(layout):
    for read in readers(layout).values():
        try:
            read()
        except REFUSALS:
            continue


def append_events(layout, *events):
    with layout.journal.open("ab") as file:
        file.writelines(seal_line(encode_event(event)) for event in events)


def files_of(layout):
    return [path for path in sorted(layout.root.rglob("*")) if path.is_file()]


@pytest.mark.slow
def test_a_pickle_in_the_place_of_any_file_runs_nothing(failed_run, tmp_path):
    mark = tmp_path / "owned"
    victims = [path.relative_to(failed_run) for path in files_of(RunLayout(failed_run))]
    names = {path.name for path in victims}
    assert {"journal.jsonl", "rank_0.jsonl", "rank_0.log", "000001.json"} < names
    assert {"state.json", "state.bin", ".manifest.json", ".metadata.json"} < names
    payload = pickle.dumps(Payload(mark))
    for number, victim in enumerate([*victims, None]):
        layout = RunLayout(tmp_path / f"copy-{number}" / "run")
        shutil.copytree(failed_run, layout.root)
        for path in files_of(layout) if victim is None else [layout.root / victim]:
            path.write_bytes(payload)
            os.utime(path, (0, 0))  # A lease that cannot be read is waited for until it lapses.
        open_with_every_reader(layout)
        assert not mark.exists(), f"{victim} was run"
    pickle.loads(payload)
    assert mark.exists(), "the payload works"


def test_documents_that_are_in_order_and_carry_pickles_run_nothing(run, tmp_path):
    """Journal lines with pickled values, and a state whose leaf is a pickle: all checksums hold."""
    mark = tmp_path / "owned"
    payload = pickle.dumps(Payload(mark))
    returned = events.WorkerReturned(2, 0, 1, pickled=payload)
    failed = WorkerFailed(2, 0, WorkerFailure(0, "user", "ValueError: no"), pickled=payload)
    append_events(run, DriverStarted(1, 0), CheckpointVerified(2, 3), returned, failed)
    for directory in run.root.glob("checkpoint_*"):
        (directory / "state.bin").write_bytes(payload + bytes(-len(payload) % 64))
        document = {
            "version": 1,
            "num_bytes": len(payload) + -len(payload) % 64,
            "tree": {"i": 1, "w": {"$leaf": 0}},
            "buffers": [{"kind": "pickle", "offset": 0, "nbytes": len(payload), "dtype": "", "shape": []}],
        }
        (directory / "state.json").write_text(json.dumps(document))
        reseal(directory)
        (directory / ".metadata.json").write_text(json.dumps({"__reduce__": ["os.system", f"touch {mark}"]}))
        commit.read_manifest(directory)
        assert commit.find_problem(directory) is None, "the document is in order"
        with pytest.raises(ValueError, match="pass allow_pickle=True if you trust"):
            Checkpoint(directory).to_dict()
    open_with_every_reader(run)
    assert not mark.exists()


def reseal(directory):
    """Write the manifest that a commit of these files would have."""
    manifest = commit.read_manifest(directory)
    (directory / commit.MANIFEST).unlink()
    entries = commit.stage_in_place(LocalFiles(), directory)
    commit._write_manifest(LocalFiles(), directory, msgspec.structs.replace(manifest, files=entries), UNFENCED)


@pytest.mark.parametrize(
    "name", ["..", "", "OUTSIDE", "../outside", "a/../../b", "a\0b", ".trash", "journal.jsonl", "logs", "\u00e9" * 200]
)
def test_a_name_that_leads_out_of_the_run_or_to_its_own_files_is_no_checkpoints(name, tmp_path):
    # Every name leads to somewhere below `tmp_path`, were it followed.
    outside = tmp_path / "outside"
    root = tmp_path / "runs" / "run"
    name = str(outside) if name == "OUTSIDE" else name
    for path in (outside / "kept", root / "journal.jsonl", tmp_path / "runs" / "outside" / "kept"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    before = sorted(tmp_path.rglob("*"))
    layout = RunLayout(root)
    assert not any(map(is_checkpoint_name, [name, "/", "/etc", "../../../../.."]))
    assert all(map(is_checkpoint_name, ["best", "a b", "back\\slash", "x" * 255, "épo\u2028que", "a..b"]))
    with pytest.raises(StorageError, match="is not a valid checkpoint name"):
        layout.checkpoint(name)
    record = CheckpointRecord(1, name, 1, msgspec.Raw(b"{}"))
    for act in (
        lambda: commit.delete_checkpoint(LocalFiles(), layout, record),
        lambda: commit.quarantine_checkpoint(LocalFiles(), layout, name),
        lambda: commit.commit_checkpoint(LocalFiles(), layout, record, [], world_size=1, created_at=0),
    ):
        with pytest.raises(StorageError, match="is not a valid checkpoint name"):
            act()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_user_cannot_choose_a_name_that_is_no_checkpoints(fit):
    def function():
        for name in ("journal.jsonl", "result.json", "a/b", "..", ".hidden", "a\0b", 7):
            with pytest.raises(ValueError, match="must be a plain directory name"):
                train.report({}, checkpoint=Checkpoint.from_dict({}), checkpoint_dir_name=name)

    fit(function, 1)


def test_a_journal_that_tells_of_checkpoints_elsewhere_is_refused_and_nothing_is_removed(run, tmp_path):
    outside = tmp_path / "outside"
    shutil.copytree(run.root / "checkpoint_000001", outside)
    manifest = commit.read_manifest(outside)
    record = msgspec.structs.replace(manifest.record, name="../outside")
    commit._write_manifest(LocalFiles(), outside, msgspec.structs.replace(manifest, record=record), UNFENCED)
    before = sorted(outside.iterdir())
    committed = Committed(msgspec.structs.replace(record, seq=4, attempt=2))
    append_events(run, DriverStarted(1, 0, Retention(1)), CheckpointVerified(2, 3), committed)
    for name, read in readers(run).items():
        if name in ("Result", "recovered", "fit"):
            with pytest.raises(StorageError, match=r"'\.\./outside' is not a valid checkpoint name"):
                read()
    assert sorted(outside.iterdir()) == before


def test_trash_and_staging_that_are_links_are_not_emptied_elsewhere(run, fit, tmp_path):
    outside = tmp_path / "outside"
    (outside / "below").mkdir(parents=True)
    (outside / "precious").write_text("mine")
    for name in (".trash", ".staging", ".broken"):
        (run.root / name).symlink_to(outside)
    with pytest.raises(StorageError):
        fit(function, 1)
    assert (outside / "precious").read_text() == "mine"
    assert (outside / "below").is_dir()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_what_a_run_writes_is_for_its_owner_alone_whatever_the_umask(tmp_path, fit, umask):
    root = tmp_path / "run"

    def function():
        os.umask(umask)
        for i in range(2):
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}), checkpoint_dir_name="last")
            if train.get_context().get_world_rank() == 0:
                train.get_checkpoint().set_metadata({"i": i})
        mine = Path(tmp_path, f"mine-{train.get_context().get_world_rank()}")
        (mine / "deep").mkdir(parents=True, exist_ok=True)
        (mine / "deep" / mine.name).write_text("x")
        train.report({}, checkpoint=Checkpoint.from_directory(mine))
        staging = train.staging_directory()
        train.collective.barrier()
        found = exposed(root)
        train.collective.barrier()
        shutil.rmtree(staging)
        return found

    before = os.umask(umask)
    try:
        result = fit(function)
        with (root / "journal.jsonl").open("ab") as file:
            file.write(b"torn")
        recover_run(DiskRunStore(LocalFiles(), RunLayout(root)), 0.0).journal.close()
    finally:
        os.umask(before)
    assert result.return_value == [], "while it ran"
    assert exposed(root) == [], "afterwards"
    assert (root / "journal.jsonl.torn").exists()


def exposed(root):
    modes = {root: root.lstat().st_mode}
    for folder, folders, files in os.walk(root):  # This passes over folders that the driver removes meanwhile.
        for path in (Path(folder, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):
                modes[path] = path.lstat().st_mode
    return [f"{path} {stat.filemode(mode)}" for path, mode in modes.items() if mode & 0o077]


# Documents that are made to hurt

DEEP = b"[" * 200_000 + b"]" * 200_000
BOMBS = {
    "deep metrics": b'{"type":"reported","attempt":1,"rank":0,"seq":9,"metrics":{"x":%b},"at":0.0,"where":""}' % DEEP,
    "a huge integer": b'{"type":"workers_stopped","attempt":%b}' % (b"9" * 100_000),
    "a huge number of reports": b'{"type":"worker_returned","attempt":1,"rank":0,"num_reports":1e400}',
    "not an object": DEEP,
}


@pytest.mark.parametrize(
    "bomb", ["deep metrics", *(pytest.param(bomb, marks=pytest.mark.slow) for bomb in [*BOMBS][1:])]
)
@pytest.mark.parametrize("where", ["journal", "report", "manifest", "metadata", "state", "lease"])
def test_a_document_made_to_hurt_is_refused_in_words(run, bomb, where):
    checkpoint = run.checkpoint("checkpoint_000003")
    match where:
        case "journal":
            with run.journal.open("ab") as file:
                file.write(seal_line(BOMBS[bomb]))
        case "report":
            append_events(run, DriverStarted(1, 0))
            run.reports(2, 0).parent.mkdir()
            run.reports(2, 0).write_bytes(seal_line(BOMBS[bomb]))
        case "manifest":
            body = BOMBS[bomb].removesuffix(b"}")
            (checkpoint / ".manifest.json").write_bytes(body + b',\n "crc32": "%08x"\n}' % zlib.crc32(body))
        case "metadata":
            (checkpoint / ".metadata.json").write_bytes(BOMBS[bomb])
        case "state":
            (checkpoint / "state.json").write_bytes(BOMBS[bomb])
        case "lease":
            path = max(run.lease.iterdir())
            path.write_bytes(BOMBS[bomb])
            os.utime(path, (0, 0))
    open_with_every_reader(run)


@pytest.mark.parametrize("metrics", [DEEP, b'{"loss":%b}' % (b"9" * 50_000), b'{"loss":{"$number":"junk"}}', b"[1]"])
def test_metrics_made_to_hurt_in_a_manifest_are_refused_in_words(run, metrics):
    path = run.checkpoint("checkpoint_000003") / ".manifest.json"
    body = path.read_bytes().rpartition(b',\n "crc32"')[0]
    start = body.index(b'"metrics": {')
    body = body[:start] + b'"metrics": ' + metrics + body[body.index(b"}", start) + 1 :]
    path.write_bytes(body + b',\n "crc32": "%08x"\n}' % zlib.crc32(body))
    run.journal.unlink()
    open_with_every_reader(run)
