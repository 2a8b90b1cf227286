"""The commit protocol, with a crash at every file operation."""

import itertools
import os
import shutil
import zlib

import msgspec
import pytest
from saving import HookedFiles, Lost, list_committed

from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles
from paceline._core.errors import RunHeldError, StorageError
from paceline._storage import commit
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import MANIFEST

pytestmark = pytest.mark.usefixtures("without_fsync")


class Crash(BaseException):
    """The process is gone; nothing after this line was done."""


def crash_at(num_calls):
    """Files of a process that does the first `num_calls` things, and half of the next one if that has halves."""
    left = num_calls

    def before(name, args):
        nonlocal left
        left -= 1
        if left >= 0:
            return
        if name in ("write", "write_parts"):
            data = args[1] if name == "write" else b"".join(args[1])
            args[0].write_bytes(data[: len(data) // 2])
        elif name == "copy":
            args[1].write_bytes(args[0].read_bytes()[:1])
        elif name == "remove_tree" and args[0].exists():
            for file in list(args[0].rglob("*"))[:1]:
                if file.is_file():
                    file.unlink()
        raise Crash

    return HookedFiles(before)


def record(seq, name=None):
    return CheckpointRecord(seq, name or f"checkpoint_{seq:06d}", 1, msgspec.Raw(b'{"loss":1.0}'))


@pytest.fixture
def stage(layout, tmp_path):
    def stage(seq, text="x", ranks=(0,), files=None, attempt=1, extra=()):
        files = files or LocalFiles()
        parts = []
        for rank in ranks:
            source = tmp_path / "source" / f"{text}-{seq}-{rank}"
            shutil.rmtree(source, ignore_errors=True)
            (source / "sub").mkdir(parents=True)
            (source / f"shard-{rank}").write_text(f"{text} {seq} {rank}")
            for name in ("sub/common", *extra):
                (source / name).write_text(f"{text} {seq}")
            target = layout.staged_rank(attempt, seq, rank)
            files.remove_tree(target)
            files.make_dir(target)
            parts.append(StagedFiles(rank, commit.stage_copy(files, source, target)))
        return parts

    return stage


@pytest.fixture
def commit_text(layout, stage):
    def commit_text(seq, name=None, text="x", ranks=(0,)):
        parts = stage(seq, text, ranks)
        commit.commit_checkpoint(LocalFiles(), layout, record(seq, name), parts, world_size=3, created_at=0)
        return layout.checkpoint(record(seq, name).name)

    return commit_text


@pytest.mark.parametrize("ranks", [[0], [1, 2]])
@pytest.mark.parametrize("name", [None, "best"])
def test_a_crash_at_any_call_shows_the_old_or_the_new_and_recovery_completes_it(
    layout, stage, commit_text, ranks, name
):
    old, new = record(1, name), record(2, name)
    for number in itertools.count():
        shutil.rmtree(layout.root)
        layout.root.mkdir()
        commit_text(1, name, "old", ranks)
        crashing = crash_at(number)
        parts = None
        try:
            parts = stage(2, "new", ranks, crashing)
            commit.commit_checkpoint(crashing, layout, new, parts, world_size=3, created_at=0)
            crashed = False
        except Crash:
            crashed = True
        commit.recover_commits(LocalFiles(), layout)
        problems = list_committed(layout)
        if not crashed:
            assert problems == {old.name: 1} | {new.name: 2}
            break
        assert problems in ({old.name: 1}, {old.name: 1} | {new.name: 2}), f"after a crash at call {number}"
        if parts is not None:
            commit.commit_checkpoint(LocalFiles(), layout, new, parts, world_size=3, created_at=0)
            assert list_committed(layout) == {old.name: 1} | {new.name: 2}
    assert number > 10, "the protocol did not get to where it crashes"


def test_a_crash_while_deleting_never_leaves_half_a_checkpoint_visible(layout, commit_text):
    for number in range(8):
        shutil.rmtree(layout.root)
        layout.root.mkdir()
        commit_text(1)
        commit_text(2)
        try:
            commit.delete_checkpoint(crash_at(number), layout, record(1))
        except Crash:
            pass
        left = list_committed(layout)
        assert left in ({"checkpoint_000002": 2}, {"checkpoint_000001": 1, "checkpoint_000002": 2})
        assert {path.name for path in layout.root.iterdir() if path.name[0] != "."} == set(left), "whole or gone"
        commit.recover_commits(LocalFiles(), layout)
        assert list_committed(layout) == left, "and not restored"
        assert not layout.trash.exists()
    assert left == {"checkpoint_000002": 2}


def test_a_directory_without_a_manifest_or_with_that_of_another_name_is_no_checkpoint(layout, commit_text):
    (layout.root / "checkpoint_000009").mkdir()
    (layout.root / "checkpoint_000009" / "model").write_text("x")
    assert list(commit.iter_manifests(layout)) == []
    assert "is missing" in commit.find_problem(layout.root / "checkpoint_000009")
    shutil.copytree(commit_text(1), layout.root / "my-copy")
    assert list_committed(layout) == {"checkpoint_000001": 1}


def test_a_link_or_a_file_is_no_checkpoint_and_is_never_removed(layout, stage, commit_text):
    target = commit_text(1).rename(layout.root.parent / "elsewhere")
    layout.checkpoint("checkpoint_000001").symlink_to(target)
    layout.checkpoint("checkpoint_000002").write_text("mine")
    for name in ("mine", ".mine", "logs"):
        (layout.root / name).mkdir()
    assert commit.find_damaged(layout) == []
    assert not commit.has_manifest(layout.checkpoint("checkpoint_000001"))
    assert list(commit.iter_manifests(layout)) == []
    with pytest.raises(StorageError, match="is a symbolic link; not deleted"):
        commit.delete_checkpoint(LocalFiles(), layout, record(1))
    for seq in (1, 2):
        parts, later = stage(seq, "new", attempt=2), msgspec.structs.replace(record(seq), attempt=2)
        with pytest.raises(StorageError, match="is not a checkpoint; not overwritten"):
            commit.commit_checkpoint(LocalFiles(), layout, later, parts, world_size=1, created_at=0)
    assert commit.find_problem(target) is None
    assert layout.checkpoint("checkpoint_000002").read_text() == "mine"


@pytest.mark.parametrize("victim", ["shard-0", "sub/common", MANIFEST])
def test_any_damage_to_any_file_is_noticed(commit_text, victim):
    directory = commit_text(1)
    path = directory / victim
    data = path.read_bytes()
    at = data.index(b'"hash":') + 10 if victim == MANIFEST else 1
    flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    for damaged in (flipped, data[:-2], b"", data + b"x", None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        assert commit.find_problem(directory) is not None, damaged


@pytest.mark.parametrize(
    "path", ["a/../../outside", "/etc/passwd", ".", "a\0b", MANIFEST, f"./{MANIFEST}", ".metadata.json"]
)
def test_a_manifest_cannot_name_files_outside_of_its_checkpoint(commit_text, path):
    manifest = commit_text(1) / MANIFEST
    # Changed as somebody would who knows how its checksum is made.
    body, seal, _ = manifest.read_bytes().rpartition(b',\n "crc32": "')
    assert seal
    assert b'"shard-0"' in body
    body = body.replace(b'"shard-0"', msgspec.json.encode(path))
    manifest.write_bytes(body + seal + b'%08x"\n}' % zlib.crc32(body))
    with pytest.raises(StorageError, match="is not a file of the checkpoint"):
        commit.read_manifest(manifest.parent)
    assert "is not a file of the checkpoint" in commit.find_problem(manifest.parent)


def test_refuses_mixed_staging_modes_special_files_and_names_that_are_too_long(layout, stage, tmp_path):
    with pytest.raises(StorageError, match=r"'x{300}' is not a valid checkpoint name"):
        layout.checkpoint(400 * "x")
    parts = [*stage(1), StagedFiles(1, (), in_place=True)]
    with pytest.raises(StorageError, match="use one mode on all ranks"):
        commit.commit_checkpoint(LocalFiles(), layout, record(1), parts, world_size=2, created_at=0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="pipe is not a regular file"):
        commit.list_files(tmp_path)


def test_a_driver_that_lost_the_run_makes_no_checkpoint_and_removes_none(layout, stage, commit_text):
    files = LocalFiles()
    commit_text(1, "last", "old")
    before = list_committed(layout)
    staged = stage(2, "new")
    in_place = [StagedFiles(0, (), in_place=True)]
    layout.checkpoint("checkpoint_000003").mkdir()
    (layout.trash / "1-other").mkdir(parents=True)
    for act in (
        lambda: commit.commit_checkpoint(
            files, layout, record(2, "last"), staged, world_size=1, created_at=0, fence=Lost()
        ),
        lambda: commit.commit_checkpoint(files, layout, record(3), in_place, world_size=1, created_at=0, fence=Lost()),
        lambda: commit.delete_checkpoint(files, layout, record(1, "last"), Lost()),
        lambda: commit.quarantine_checkpoint(files, layout, "last", Lost()),
        lambda: commit.recover_commits(files, layout, Lost()),
        lambda: commit.clear_staging(files, layout, Lost()),
    ):
        with pytest.raises(RunHeldError):
            act()
        assert list_committed(layout) == before
    assert layout.staged_checkpoint(1, 2).exists()
    assert (layout.trash / "1-other").exists()


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


def test_files_that_an_earlier_attempt_stages_late_are_no_part_of_a_later_checkpoint(layout, stage):
    """A worker of a group that is being ended may still be writing when the next group stages the same report."""
    parts = stage(5, "second", attempt=2)
    stage(5, "first", attempt=1, extra=["leftover"])
    second = msgspec.structs.replace(record(5), attempt=2)
    commit.commit_checkpoint(LocalFiles(), layout, second, parts, world_size=1, created_at=0)
    assert list_committed(layout) == {"checkpoint_000005": 5}
    directory = layout.checkpoint("checkpoint_000005")
    assert sorted(path.name for path in directory.iterdir()) == [MANIFEST, "shard-0", "sub"]
    assert (directory / "sub" / "common").read_text() == "second 5"
