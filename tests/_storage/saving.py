"""A save as in a run, without processes: both ranks stage, the driver commits."""

import shutil

import msgspec

from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import RunHeldError
from paceline._storage import commit
from paceline._storage.files import LocalFiles
from paceline._storage.run_store import DiskRunStore
from paceline._worker.upload import Directory, InPlace, State, Uploader

KINDS = ("state", "copied", "moved", "in place")
NUM_BYTES = 200
CALLS = ("make_dir", "write", "write_parts", "copy", "seal", "rename", "sync_dir", "sync_file", "remove", "remove_tree")


class Lost:
    """The lease of a driver that was taken over."""

    number = 1

    def check(self):
        raise RunHeldError("taken over")

    raise_if_lost = check

    def check_if_overdue(self):
        """Not yet: it is lost by the time that it is checked."""


class HookedFiles(LocalFiles):
    """Calls `before` with the name and the arguments of everything that is done to files, and `after` behind it."""

    def __init__(self, before, after=lambda: None):
        self.before, self.after = before, after


def _hook(name):
    def method(self, *args, **kwargs):
        self.before(name, args)
        try:
            return getattr(LocalFiles, name)(self, *args, **kwargs)
        finally:
            self.after()

    return method


for _name in CALLS:
    setattr(HookedFiles, _name, _hook(_name))


def write_source(kind, layout, uploader, name, rank, text):
    if kind == "state":
        return State({"text": text, "rank": rank, "bytes": b"x" * NUM_BYTES})
    if kind == "in place":
        path = layout.root / name
        path.mkdir(exist_ok=True)
    elif kind == "moved":
        path = uploader.scratch_directory()
    else:
        path = layout.root.parent / "mine" / f"{text}-{rank}"
        shutil.rmtree(path, ignore_errors=True)
    (path / "deep" / "er").mkdir(parents=True, exist_ok=True)
    (path / f"shard-{rank}").write_text(text)
    (path / "deep" / "er" / f"file-{rank}").write_bytes(b"y" * NUM_BYTES)
    return InPlace(path) if kind == "in place" else Directory(path)


def save(files, layout, kind, seq, name, ranks=(0, 1)):
    """Stage on both ranks and commit on the driver, as in a run; return the error that prevented it, if any."""
    record = CheckpointRecord(seq, name, 1, msgspec.Raw(b'{"loss":1.0}'))
    try:
        parts = stage(files, layout, kind, seq, name, ranks)
    except OSError as error:
        return error
    try:
        commit.commit_checkpoint(files, layout, record, parts, world_size=2, created_at=0.0)
    except OSError as error:
        commit.discard_staged(files, layout, record)
        return error
    return None


def stage(files, layout, kind, seq, name, ranks):
    parts = []
    for rank in ranks:
        uploader = Uploader(files, DiskRunStore(files, layout), 1, rank)
        try:
            parts.append(uploader.upload(seq, name, write_source(kind, layout, uploader, name, rank, f"text {seq}")))
        except OSError:
            for other in set(ranks) - {rank}:  # It clears up after itself; the others when they are told.
                Uploader(files, DiskRunStore(files, layout), 1, other).discard(seq)
            raise
    return parts


def list_committed(layout):
    """The checkpoints that a reader sees, by name, each checked against its manifest."""
    committed = {}
    for manifest in commit.iter_manifests(layout):
        assert commit.find_problem(layout.checkpoint(manifest.record.name)) is None, "half of one is visible"
        committed[manifest.record.name] = manifest.record.seq
    return committed
