"""A save on filesystems of other kinds, which may refuse O_DIRECT or fallocate, or have layers: whole, or refused.

`mounts.py` mounts them for one thread, which needs the rights of root.
"""

import contextlib
import errno
import os
import random

import msgspec
import numpy as np
import pytest
from mounts import is_written_directly, mount_fuse, mount_overlay, mount_tmpfs, run_with_mounts
from saving import list_committed

from paceline._core.checkpoint_records import CheckpointRecord
from paceline._storage import commit
from paceline._storage.file_writer import MIN_BYTES, PIECE_BYTES, LargeFileWriter
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline._storage.state import read_state
from paceline._worker.upload import Directory, State, Uploader

FILESYSTEMS = ("tmpfs", "overlay", "fuse", "overlay on tmpfs", "fuse on tmpfs")
SIZES = (0, 1, 4095, 4096, 4097, MIN_BYTES - 1, MIN_BYTES, MIN_BYTES + 1, MIN_BYTES + PIECE_BYTES - 1, 3 * PIECE_BYTES)
"""Around a block, around the size from which on several threads write, and around a piece."""


@contextlib.contextmanager
def mount(filesystem, below, size="400m"):
    kind, _, base = filesystem.partition(" on ")
    with contextlib.ExitStack() as stack:
        if base or kind == "tmpfs":
            below = stack.enter_context(mount_tmpfs(below, size))
        if kind != "tmpfs":
            below = stack.enter_context({"overlay": mount_overlay, "fuse": mount_fuse}[kind](below))
        yield below


def save(layout, seq, source, name=None):
    """Stage on one rank, and commit."""
    name, files = name or f"checkpoint_{seq:06}", LocalFiles()
    uploader = Uploader(files, DiskRunStore(files, layout), 1, 0)
    staged = uploader.upload(seq, name, source(uploader) if callable(source) else source)
    record = CheckpointRecord(seq, name, 1, msgspec.Raw(b"{}"))
    commit.commit_checkpoint(files, layout, record, [staged], world_size=1, created_at=0.0)
    return layout.checkpoint(name), staged


def write_unsized(path, data):
    with LargeFileWriter(path) as writer:
        writer.add(data)
        return writer.finish(path.name)


def make_layout(root):
    (root / "run").mkdir()
    return RunLayout(root / "run")


@pytest.mark.parametrize("filesystem", FILESYSTEMS[:3])
def test_what_is_saved_on_it_is_read_back_whatever_its_size_is(filesystem, tmp_path):
    dice = random.Random(7)
    contents = {str(size): dice.randbytes(size) for size in SIZES}

    def write_files(directory):
        directory.mkdir(exist_ok=True)
        for name, data in contents.items():
            (directory / name).write_bytes(data)
        return directory

    def check():
        with mount(filesystem, tmp_path) as root:
            layout = make_layout(root)
            arrays = {name: np.frombuffer(data, np.uint8) for name, data in contents.items()}
            state, staged = save(layout, 1, State(arrays))
            assert staged.times.num_bytes == sum(entry.size for entry in staged.files)
            restored = read_state(state)
            assert {name: array.tobytes() for name, array in restored.items()} == contents
            del restored  # It maps the file.
            moved, staged = save(layout, 2, lambda uploader: Directory(write_files(uploader.scratch_directory())))
            assert staged.times.num_bytes == 0
            copied, _ = save(layout, 3, Directory(write_files(root / "mine")))
            for directory in (moved, copied):
                assert {name: (directory / name).read_bytes() for name in contents} == contents
            for directory in (state, moved, copied):
                assert commit.find_problem(directory) is None
            with LargeFileWriter(root / "file", MIN_BYTES) as writer:
                writer.add(memoryview(bytearray(MIN_BYTES)))
                writer.finish("file")
                assert writer._is_direct == is_written_directly(root)
            record = CheckpointRecord(2, "checkpoint_000002", 1, msgspec.Raw(b"{}"))
            commit.delete_checkpoint(LocalFiles(), layout, record)
            assert list_committed(layout) == {"checkpoint_000001": 1, "checkpoint_000003": 3}

    run_with_mounts(check)


@pytest.mark.parametrize("filesystem", [FILESYSTEMS[0], *FILESYSTEMS[3:]])
def test_one_that_runs_full_in_the_middle_refuses_the_save_keeps_the_last_and_takes_the_next(filesystem, tmp_path):
    small, large = bytearray(MIN_BYTES), bytearray(3 * MIN_BYTES)

    def check():
        with mount(filesystem, tmp_path, size="30m") as root:
            layout = make_layout(root)
            assert save(layout, 1, State({"array": np.frombuffer(small, np.uint8)}))
            mine = tmp_path / "mine"
            mine.mkdir()
            for name in "abc":
                (mine / name).write_bytes(small)
            # By its size, which is known before the first byte; and in the third file.
            for seq, source in ((2, State({"array": np.frombuffer(large, np.uint8)})), (3, Directory(mine))):
                with pytest.raises(OSError, match=r"No space left on device: .*, \d+ free") as caught:
                    save(layout, seq, source)
                assert caught.value.errno == errno.ENOSPC
                staged = layout.staged_checkpoint(1, seq)
                assert [path for path in staged.rglob("*") if path.is_file()] == [], "what failed still fills the disk"
            # In the middle of a file whose size nobody knows before.
            with pytest.raises(OSError, match="No space left on device"):
                write_unsized(root / "file", memoryview(large))
            os.unlink(root / "file")
            assert list_committed(layout) == {"checkpoint_000001": 1}
            assert save(layout, 4, State({"array": np.frombuffer(small, np.uint8)}))
            assert list_committed(layout) == {"checkpoint_000001": 1, "checkpoint_000004": 4}

    run_with_mounts(check)


def test_a_checkpoint_in_the_lower_layer_of_an_overlay_stays_whole_though_it_cannot_be_renamed(tmp_path):
    """As of a run that was built into the image of a container: it goes on, and what it cannot delete is not harmed."""
    (tmp_path / "lower").mkdir()
    layout = make_layout(tmp_path / "lower")
    save(layout, 1, State({"step": 1}), name="best")

    def check():
        with mount("overlay", tmp_path) as root:
            layout = RunLayout(root / "run")
            save(layout, 2, State({"step": 2}))
            with pytest.raises(OSError, match="Invalid cross-device link"):
                save(layout, 3, State({"step": 3}), name="best")
            record = CheckpointRecord(1, "best", 1, msgspec.Raw(b"{}"))
            with pytest.raises(OSError, match="Invalid cross-device link"):
                commit.delete_checkpoint(LocalFiles(), layout, record)
            commit.recover_commits(LocalFiles(), layout)
            assert list_committed(layout) == {"best": 1, "checkpoint_000002": 2}

    run_with_mounts(check)
