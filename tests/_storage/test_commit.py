"""The commit protocol, with a crash at every single thing that is done to files."""

import itertools
import os
import shutil
import zlib

import msgspec
import pytest

from paceline._core.errors import RunHeldError, StorageError
from paceline._engine.messages import CheckpointRecord, Staged
from paceline._storage import commit
from paceline._storage.files import LocalFiles
from paceline._storage.layout import MANIFEST, Layout


class Crash(BaseException):
    """The process is gone; nothing after this line was done."""


class CrashingFiles(LocalFiles):
    """Does the first `num_calls` things, and half of the next one if that is a write."""

    def __init__(self, num_calls):
        self.left = num_calls

    def _crash_now(self):
        self.left -= 1
        return self.left < 0

    def write(self, path, data):
        if self._crash_now():
            path.write_bytes(data[: len(data) // 2])
            raise Crash
        super().write(path, data)

    def copy(self, source, target, name):
        if self._crash_now():
            target.write_bytes(source.read_bytes()[:1])
            raise Crash
        return super().copy(source, target, name)

    def remove_tree(self, path):
        if self._crash_now():
            for file in list(path.rglob("*"))[:1] if path.exists() else ():
                if file.is_file():
                    file.unlink()
            raise Crash
        super().remove_tree(path)


def _crashing(name):
    def method(self, *args):
        if self._crash_now():
            raise Crash
        return getattr(LocalFiles, name)(self, *args)

    return method


for _name in ("make_dir", "seal", "rename", "sync_dir", "remove"):
    setattr(CrashingFiles, _name, _crashing(_name))


def record(seq, name=None):
    return CheckpointRecord(seq, name or f"checkpoint_{seq:06d}", 1, msgspec.Raw(b'{"loss":1.0}'))


def stage(files, layout, tmp_path, seq, ranks, text):
    parts = []
    for rank in ranks:
        source = tmp_path / "source" / f"{text}-{seq}-{rank}"
        shutil.rmtree(source, ignore_errors=True)
        (source / "sub").mkdir(parents=True)
        (source / f"shard-{rank}").write_text(f"{text} {seq} {rank}")
        (source / "sub" / "common").write_text(f"{text} {seq}")
        target = layout.staged_rank(1, seq, rank)
        files.remove_tree(target)
        files.make_dir(target)
        parts.append(Staged(rank, commit.staged_copy(files, source, target)))
    return parts


def rewrite(manifest, old, new):
    """Change a manifest as somebody would who knows how its checksum is made."""
    body, seal, _ = manifest.read_bytes().rpartition(b',\n "crc32": "')
    assert seal
    assert old in body
    body = body.replace(old, new)
    manifest.write_bytes(body + seal + b'%08x"\n}' % zlib.crc32(body))


def committed(layout):
    """What a reader sees: the checkpoints, each checked against its manifest."""
    seen = {}
    for manifest in commit.manifests(layout):
        assert commit.problem_with(layout.checkpoint(manifest.record.name)) is None, "half of one is visible"
        seen[manifest.record.name] = manifest.record.seq
    return seen


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    """A crash of a process loses nothing that was written; only a crash of the machine does."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


@pytest.fixture
def layout(tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    return Layout(root)


@pytest.mark.parametrize("ranks", [[0], [0, 1], [1, 2]])
@pytest.mark.parametrize("name", [None, "best"])
def test_a_crash_at_any_call_shows_the_old_or_the_new_and_recovery_completes_it(tmp_path, layout, ranks, name):
    for crash_at in itertools.count():
        shutil.rmtree(layout.root)
        layout.root.mkdir()
        files = LocalFiles()
        old = record(1, name)
        commit.commit(files, layout, old, stage(files, layout, tmp_path, 1, ranks, "old"), world_size=3, created_at=0)
        new = record(2, name)
        crashing = CrashingFiles(crash_at)
        parts = None
        try:
            parts = stage(crashing, layout, tmp_path, 2, ranks, "new")
            commit.commit(crashing, layout, new, parts, world_size=3, created_at=0)
            crashed = False
        except Crash:
            crashed = True
        commit.recover(files, layout)
        seen = committed(layout)
        if not crashed:
            assert seen == {old.name: 1} | {new.name: 2}
            break
        assert seen in ({old.name: 1}, {old.name: 1} | {new.name: 2}), f"after a crash at call {crash_at}"
        if parts is not None:
            commit.commit(files, layout, new, parts, world_size=3, created_at=0)
            assert committed(layout) == {old.name: 1} | {new.name: 2}
    assert crash_at > 10, "the protocol did not get to where it crashes"


def test_a_crash_while_deleting_never_leaves_half_a_checkpoint_visible(tmp_path, layout):
    for crash_at in range(4):
        files = LocalFiles()
        shutil.rmtree(layout.root)
        layout.root.mkdir()
        for seq in (1, 2):
            parts = stage(files, layout, tmp_path, seq, [0], "x")
            commit.commit(files, layout, record(seq), parts, world_size=1, created_at=0)
        try:
            commit.delete(CrashingFiles(crash_at), layout, record(1))
        except Crash:
            pass
        assert committed(layout) in (
            {"checkpoint_000002": 2},
            {"checkpoint_000001": 1, "checkpoint_000002": 2},
        )


def test_a_directory_without_a_manifest_is_no_checkpoint(tmp_path, layout):
    (layout.root / "checkpoint_000009").mkdir()
    (layout.root / "checkpoint_000009" / "model").write_text("x")
    assert list(commit.manifests(layout)) == []
    assert "is missing" in commit.problem_with(layout.root / "checkpoint_000009")


def test_a_copy_of_a_checkpoint_under_another_name_is_not_taken_for_one(tmp_path, layout):
    files = LocalFiles()
    parts = stage(files, layout, tmp_path, 1, [0], "x")
    commit.commit(files, layout, record(1), parts, world_size=1, created_at=0)
    shutil.copytree(layout.root / "checkpoint_000001", layout.root / "my-copy")
    assert committed(layout) == {"checkpoint_000001": 1}


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove", "grow"])
@pytest.mark.parametrize("victim", ["shard-0", "sub/common", MANIFEST])
def test_any_damage_to_any_file_is_noticed(tmp_path, layout, damage, victim):
    files = LocalFiles()
    parts = stage(files, layout, tmp_path, 1, [0], "x")
    commit.commit(files, layout, record(1), parts, world_size=1, created_at=0)
    directory = layout.root / "checkpoint_000001"
    path = directory / victim
    data = path.read_bytes()
    match damage:
        case "flip":
            at = data.index(b'"hash":') + 10 if victim == MANIFEST else 1
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        case "truncate":
            path.write_bytes(data[:-2])
        case "empty":
            path.write_bytes(b"")
        case "remove":
            path.unlink()
        case "grow":
            path.write_bytes(data + b"x")
    assert commit.problem_with(directory) is not None


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "/etc/passwd",
        "a/../../outside",
        "..",
        ".",
        "",
        "a\0b",
        MANIFEST,
        f"./{MANIFEST}",
        ".metadata.json",
    ],
)
def test_a_manifest_cannot_name_files_outside_of_its_checkpoint(tmp_path, layout, path):
    files = LocalFiles()
    parts = stage(files, layout, tmp_path, 1, [0], "x")
    commit.commit(files, layout, record(1), parts, world_size=1, created_at=0)
    manifest = layout.root / "checkpoint_000001" / MANIFEST
    rewrite(manifest, b'"shard-0"', msgspec.json.encode(path))
    with pytest.raises(StorageError, match="outside of the checkpoint"):
        commit.read_manifest(manifest.parent)
    assert "outside of the checkpoint" in commit.problem_with(manifest.parent)


def test_mixing_files_in_place_with_staged_ones_is_refused(tmp_path, layout):
    files = LocalFiles()
    parts = stage(files, layout, tmp_path, 1, [0], "x")
    with pytest.raises(StorageError, match="use one mode on all ranks"):
        commit.commit(files, layout, record(1), [*parts, Staged(1, (), in_place=True)], world_size=2, created_at=0)


def test_a_socket_in_a_checkpoint_is_refused_by_name(tmp_path, layout):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="pipe is not a regular file"):
        commit.files_below(tmp_path)


def test_deleting_a_checkpoint_whose_name_was_used_again_leaves_the_newer_one(tmp_path, layout):
    files = LocalFiles()
    for seq, text in ((1, "old"), (3, "new")):
        parts = stage(files, layout, tmp_path, seq, [0], text)
        commit.commit(files, layout, record(seq, "best"), parts, world_size=1, created_at=0)
    commit.delete(files, layout, record(1, "best"))
    assert committed(layout) == {"best": 3}
    commit.delete(files, layout, record(3, "best"))
    assert committed(layout) == {}


def test_a_commit_that_is_made_up_for_does_not_undo_a_newer_one_of_its_name(tmp_path, layout):
    files = LocalFiles()
    old = stage(files, layout, tmp_path, 1, [0], "old")
    new = stage(files, layout, tmp_path, 2, [0], "new")
    commit.commit(files, layout, record(2, "best"), new, world_size=1, created_at=0)
    commit.commit(files, layout, record(1, "best"), old, world_size=1, created_at=0)
    assert committed(layout) == {"best": 2}


class Lost:
    """The lease of a driver that was taken over."""

    number = 1

    def check(self):
        raise RunHeldError("taken over")

    raise_if_lost = check


def test_a_driver_that_lost_the_run_makes_no_checkpoint_and_removes_none(tmp_path, layout):
    files = LocalFiles()
    parts = stage(files, layout, tmp_path, 1, [0], "old")
    commit.commit(files, layout, record(1, "last"), parts, world_size=1, created_at=0)
    before = committed(layout)
    staged = stage(files, layout, tmp_path, 2, [0], "new")
    in_place = [Staged(0, (), in_place=True)]
    layout.checkpoint("checkpoint_000003").mkdir()
    (layout.trash / "1-other").mkdir(parents=True)
    for act in (
        lambda: commit.commit(files, layout, record(2, "last"), staged, world_size=1, created_at=0, fence=Lost()),
        lambda: commit.commit(files, layout, record(3), in_place, world_size=1, created_at=0, fence=Lost()),
        lambda: commit.delete(files, layout, record(1, "last"), Lost()),
        lambda: commit.set_aside(files, layout, "last", Lost()),
        lambda: commit.recover(files, layout, Lost()),
        lambda: commit.clear_staging(files, layout, Lost()),
    ):
        with pytest.raises(RunHeldError):
            act()
        assert committed(layout) == before
    assert layout.staged(1, 2).exists()
    assert (layout.trash / "1-other").exists()


def test_a_checkpoint_that_stepped_aside_is_back_when_the_newer_one_cannot_be_put_in_its_place(tmp_path, layout):
    class Refusing(LocalFiles):
        def rename(self, source, target):
            if source.name == "gathered":
                raise OSError("no")
            super().rename(source, target)

    files = Refusing()
    parts = stage(files, layout, tmp_path, 1, [0, 1], "old")
    commit.commit(LocalFiles(), layout, record(1, "last"), parts, world_size=2, created_at=0)
    parts = stage(files, layout, tmp_path, 2, [0, 1], "new")
    with pytest.raises(OSError, match="no"):
        commit.commit(files, layout, record(2, "last"), parts, world_size=2, created_at=0)
    assert committed(layout) == {"last": 1}


def test_staging_is_cleared_of_what_was_there_and_goes_when_it_is_empty(layout):
    (layout.staging / "attempt_1").mkdir(parents=True)

    class Meanwhile:
        number = 1

        def check(self):
            (layout.staging / "attempt_2").mkdir()

    commit.clear_staging(LocalFiles(), layout, Meanwhile())
    assert [path.name for path in layout.staging.iterdir()] == ["attempt_2"]
    commit.clear_staging(LocalFiles(), layout)
    assert not layout.staging.exists()


def test_what_an_earlier_attempt_stages_late_is_no_part_of_a_later_ones_checkpoint(tmp_path, layout):
    """A worker of a group that is being ended may still be writing when the next group stages the same report."""
    files = LocalFiles()

    def staged(attempt, names):
        source = tmp_path / f"source-{attempt}"
        source.mkdir()
        for name in names:
            (source / name).write_text(f"attempt {attempt}")
        target = layout.staged_rank(attempt, 5, 0)
        files.remove_tree(target)
        files.make_dir(target)
        return Staged(0, commit.staged_copy(files, source, target))

    parts = [staged(2, ["model"])]
    staged(1, ["model", "leftover"])
    second = msgspec.structs.replace(record(5), attempt=2)
    commit.commit(files, layout, second, parts, world_size=1, created_at=0)
    assert committed(layout) == {"checkpoint_000005": 5}
    directory = layout.checkpoint("checkpoint_000005")
    assert sorted(path.name for path in directory.iterdir()) == [MANIFEST, "model"]
    assert (directory / "model").read_text() == "attempt 2"
