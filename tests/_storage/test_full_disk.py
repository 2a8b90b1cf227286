"""A save on a disk that is full or broken: at every call and at every byte, the checkpoint before it stays whole.

Faults come in two ways. `FailingFiles` fails at one call, or from one call on; `full_after` lets a number of bytes
through, the last write short, as a disk does that runs full.
"""

import errno
import itertools
import os
import shutil

import msgspec
import pytest
from saving import KINDS, HookedFiles, list_committed, save

from paceline._core.checkpoint_records import CheckpointRecord
from paceline._storage import commit
from paceline._storage.files import LocalFiles
from paceline._storage.run_store import DiskRunStore
from paceline._worker.upload import Directory, Uploader

pytestmark = pytest.mark.usefixtures("without_fsync")


class FailingFiles(HookedFiles):
    """Fails at call number `at`; with `on`, at every later one too."""

    def __init__(self, at, code, on=False):
        super().__init__(self.fail)
        self.left, self.code, self.on = at, code, on

    def fail(self, name, args):
        self.left -= 1
        if self.left == -1 or (self.on and self.left < 0):
            raise OSError(self.code, os.strerror(self.code), str(args[0]))


def list_staged(layout, seq):
    return [path for path in layout.staged_checkpoint(1, seq).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("kind", "reused"),
    # Files in place have a name of their own.
    [*((kind, False) for kind in KINDS), *((kind, True) for kind in KINDS if kind != "in place")],
)
@pytest.mark.parametrize("on", [False, True], ids=["once", "from then on"])
def test_a_save_that_fails_at_any_call_leaves_the_one_before_and_lets_the_next_one_through(layout, kind, on, reused):
    first, second, third = ("best",) * 3 if reused else ("first", "second", "third")
    for at in itertools.count():
        shutil.rmtree(layout.root)
        layout.root.mkdir()
        healthy = LocalFiles()
        assert save(healthy, layout, kind, 1, first) is None
        failing = FailingFiles(at, errno.EIO if at % 2 else errno.ENOSPC, on)
        problem = save(failing, layout, kind, 2, second)
        reached = failing.left < 0
        if on:
            commit.recover_commits(healthy, layout)  # Where nothing can be put back any more, the next driver does it.
        now = list_committed(layout)
        assert now in ({first: 1}, {first: 1} | {second: 2}), f"after a fault at call {at}"
        if problem is None:
            assert now == {first: 1} | {second: 2}, "what was not refused is there"
        elif not on:
            assert list_staged(layout, 2) == [], "what failed still fills the disk"
        assert save(healthy, layout, kind, 3, third) is None, "the next save works"
        assert list_committed(layout)[third] == 3
        for record in (CheckpointRecord(seq, name, 1, msgspec.Raw(b"{}")) for name, seq in now.items()):
            if record.name != third:
                commit.delete_checkpoint(healthy, layout, record)
        assert list_committed(layout) == {third: 3}
        if not reached:
            break
    assert at > 5, "the fault did not get to where it hurts"


@pytest.mark.parametrize("kind", ["state", "copied"])
def test_a_disk_full_at_any_byte_keeps_the_last_checkpoint_and_names_the_need(layout, kind, monkeypatch):
    write = os.write
    for room in itertools.count(0, 29):
        shutil.rmtree(layout.root)
        layout.root.mkdir()
        assert save(LocalFiles(), layout, kind, 1, "first") is None
        left = room

        def full_after(fd, data):
            nonlocal left
            if left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = write(fd, bytes(data)[:left])
            left -= written
            return written

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full_after)
            problem = save(LocalFiles(), layout, kind, 2, "second")
        if problem is None:
            break
        assert list_committed(layout) == {"first": 1}
        assert list_staged(layout, 2) == []
        assert problem.errno == errno.ENOSPC
        assert str(layout.root) in problem.filename
        assert "No space left on device: " in problem.strerror
        assert " bytes needed, " in problem.strerror
        assert problem.strerror.endswith(" free")
    assert list_committed(layout) == {"first": 1, "second": 2}
    assert room > 500, "the disk never ran full"


def test_a_link_in_a_directory_of_ours_is_copied_as_what_it_leads_to(layout, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "weights").write_text("as they were")
    uploader = Uploader(LocalFiles(), DiskRunStore(LocalFiles(), layout), 1, 0)
    scratch = uploader.scratch_directory()
    (scratch / "weights").symlink_to(outside / "weights")
    (scratch / "more").symlink_to(outside)
    staged = uploader.upload(1, "checkpoint_000001", Directory(scratch))
    record = CheckpointRecord(1, "first", 1, msgspec.Raw(b"{}"))
    commit.commit_checkpoint(LocalFiles(), layout, record, [staged], world_size=1, created_at=0.0)
    shutil.rmtree(outside)
    assert list_committed(layout) == {"first": 1}
    assert (layout.root / "first" / "weights").read_text() == "as they were"
    assert (layout.root / "first" / "more" / "weights").read_text() == "as they were"
    assert not scratch.exists()


def test_refuses_cyclic_links(layout, tmp_path):
    (tmp_path / "mine" / "below").mkdir(parents=True)
    (tmp_path / "mine" / "below" / "up").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="links to a directory that contains it"):
        Uploader(LocalFiles(), DiskRunStore(LocalFiles(), layout), 1, 0).upload(
            1, "checkpoint_000001", Directory(tmp_path / "mine")
        )
