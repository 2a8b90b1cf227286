"""The power goes off at any moment of a save: of what was not synced, all, some or nothing is there afterwards.

`Platter` knows what the disk must still have: of a file its bytes when it was last synced, of a directory its names
when it was last synced. A direct write that returned counts for nothing: it may be in the disk's own cache. At every
moment the states that a power cut can leave are built as real directories:

- nothing that was not synced: names and bytes alike;
- every name, and of the bytes only what was synced (a filesystem that writes names first);
- every name, and of the bytes some pieces in any order, with zeros between them (a file written directly, whose space
  was allocated first);
- the same, but what lies deeper in a checkpoint is as it is (one that writes directories when it likes);
- the names as they are, but in a checkpoint only those that were synced, with or without its manifest;
- the names as they were at some earlier moment since a directory was last synced (one that keeps them in order).

In each of them a reader finds whole checkpoints only, and those that had been promised.
"""

import itertools
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from saving import KINDS, HookedFiles, list_committed, save, stage

from paceline._core.checkpoint_records import CheckpointRecord
from paceline._storage import commit, file_writer
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import MANIFEST, RunLayout

PIECE = file_writer.ALIGNMENT
Names = dict[int, dict[str, int]]
Tree = dict[str, "bytes | Tree"]


class Platter:
    """What of a directory tree would survive. Inodes are held open, so that their numbers are not used again."""

    def __init__(self, root):
        self.root = root
        self.open_fds: dict[int, int] = {}
        self.synced_names: Names = {}
        self.synced_bytes: dict[int, bytes] = {}
        self.earlier: list[Names] = []
        self.look()

    def look(self):
        """The tree as a process sees it now."""
        names: Names = {}
        for parent, below, files in os.walk(self.root):
            self._pin(parent)
            names[os.stat(parent).st_ino] = {name: self._pin(os.path.join(parent, name)) for name in (*below, *files)}
        if not self.earlier or names != self.earlier[-1]:
            self.earlier.append(names)
        return names

    def _pin(self, path):
        number = os.lstat(path).st_ino
        if number not in self.open_fds:
            self.open_fds[number] = os.open(path, os.O_RDONLY)
        return number

    def synced(self, fd):
        path = os.readlink(f"/proc/self/fd/{fd}")
        if not Path(path).is_relative_to(self.root):
            return  # What a reader does after the power is back.
        now = self.look()
        number = os.fstat(fd).st_ino
        if os.path.isdir(path):
            self.synced_names[number] = now[number]
            self.earlier = [now]
        else:
            self.synced_bytes[number] = Path(path).read_bytes()

    def after_a_cut(self):
        """The states that the power could leave."""
        now = self.look()
        top = os.stat(self.root).st_ino
        upper = {top, *self.synced_names.get(top, {}).values()}
        below = {number: names for number, names in now.items() if number not in upper}
        states = [
            self._tree(top, self.synced_names, keep="none"),
            self._tree(
                top, {**{n: names for n, names in self.synced_names.items() if n in upper}, **below}, keep="none"
            ),
            self._tree(top, now, keep="half"),
            self._tree(top, now, keep="pieces"),
            self._tree(top, {**now, **self._synced_below(now, top)}, keep="none"),
            self._tree(top, {**now, **self._synced_below(now, top, {MANIFEST})}, keep="none"),
        ]
        return states + [self._tree(top, names, keep="none") for names in self.earlier]

    def _synced_below(self, now, top, early=frozenset()):
        """The names in the directories of checkpoints that were synced, and those that are on the disk by chance."""
        inside = [number for name, number in now[top].items() if not name.startswith(".") and number in now]
        for number in inside:
            inside += [below for below in now[number].values() if below in now]
        chance = {number: {name: each for name, each in now[number].items() if name in early} for number in inside}
        return {number: {**self.synced_names.get(number, {}), **chance[number]} for number in inside}

    def _tree(self, directory, names, keep):
        tree: Tree = {}
        for name, number in names.get(directory, {}).items():
            if os.path.isdir(f"/proc/self/fd/{self.open_fds[number]}"):
                tree[name] = self._tree(number, names, keep)
            elif number in self.synced_bytes:
                tree[name] = self.synced_bytes[number]
            else:
                data = os.pread(self.open_fds[number], 1 << 20, 0)
                tree[name] = {"none": b"", "half": data[: len(data) // 2], "pieces": tear(data)}[keep]
        return tree

    def close(self):
        for fd in self.open_fds.values():
            os.close(fd)


def tear(data):
    pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)]
    return b"".join(bytes(len(piece)) if number % 2 == 0 else piece for number, piece in enumerate(pieces))


def build(tree, target):
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name, below in tree.items():
        if isinstance(below, dict):
            build(below, target / name)
        else:
            (target / name).write_bytes(below)
    return target


@pytest.fixture
def platter(layout, monkeypatch):
    platter = Platter(layout.root)
    monkeypatch.setattr(os, "fsync", platter.synced)
    monkeypatch.setattr(file_writer, "NUM_THREADS", 1)  # The platter is looked at after each write.
    monkeypatch.setattr(file_writer, "PIECE_BYTES", PIECE)
    yield platter
    platter.close()


class Promises:
    """At every moment, which checkpoints must be found after a power cut, and which may."""

    def __init__(self, platter, tmp_path):
        self.platter = platter
        self.target = tmp_path / "after"
        self.must: dict[str, int] = {}
        self.may: dict[str, int] = {}
        self.num_states = 0
        self.checked: list[tuple[object, ...]] = []

    def check(self):
        for tree in self.platter.after_a_cut():
            # What differs in how it is promised, or in itself, from all that was looked at before.
            case = (dict(self.must), dict(self.may), tree)
            if case in self.checked:
                continue
            self.checked.append(case)
            self.num_states += 1
            layout = RunLayout(build(tree, self.target))
            commit.recover_commits(LocalFiles(), layout)
            state_found = list_committed(layout)  # Fails where half of one is visible.
            for name, seq in self.must.items():
                assert state_found.get(name, 0) >= seq, f"{name} of report {seq} is lost: {state_found}"
            for name, seq in state_found.items():
                assert seq in (self.must.get(name), self.may.get(name)), f"{name} of report {seq} is there"


@pytest.mark.parametrize(
    ("kind", "reused", "in_pieces"),
    [
        *((kind, False, in_pieces) for kind in KINDS for in_pieces in (False, True)),
        # Files in place have a name of their own.
        *((kind, True, False) for kind in KINDS if kind != "in place"),
    ],
)
def test_after_a_power_cut_at_any_moment_every_promised_checkpoint_is_there_and_whole(
    layout, platter, tmp_path, monkeypatch, kind, reused, in_pieces
):
    first, second = ("best", "best") if reused else ("first", "second")
    promises = Promises(platter, tmp_path)
    if in_pieces:
        pwrite = os.pwrite
        monkeypatch.setattr(file_writer, "MIN_BYTES", 0)
        monkeypatch.setattr("saving.NUM_BYTES", 3 * PIECE + 7)
        monkeypatch.setattr(os, "pwrite", lambda *args: (pwrite(*args), promises.check())[0])
    files = HookedFiles(lambda *_: promises.check(), promises.check)

    promises.may = {first: 1}
    assert save(files, layout, kind, 1, first) is None
    promises.must = {first: 1}
    promises.check()

    promises.may = {second: 2}
    assert save(files, layout, kind, 2, second) is None
    promises.must = {first: 1} | {second: 2}
    promises.check()

    if not reused:
        promises.may, promises.must = {first: 1}, {second: 2}
        commit.delete_checkpoint(files, layout, CheckpointRecord(1, first, 1, msgspec.Raw(b"{}")))
        promises.check()
    assert promises.num_states > 20


@pytest.mark.parametrize("reused", [False, True])
def test_a_commit_that_the_next_driver_completes_survives_a_power_cut_wherever_the_first_one_died(
    tmp_path, monkeypatch, reused
):
    class Death(BaseException):
        pass

    first, second = ("best", "best") if reused else ("first", "second")
    for number in itertools.count():
        layout = RunLayout(tmp_path / str(number) / "run")
        layout.root.mkdir(parents=True)
        platter = Platter(layout.root)
        monkeypatch.setattr(os, "fsync", platter.synced)
        promises = Promises(platter, tmp_path)
        left = number

        def die(*_):
            nonlocal left
            left -= 1
            if left < 0:
                raise Death

        assert save(LocalFiles(), layout, "state", 1, first, (0,)) is None
        parts = stage(LocalFiles(), layout, "state", 2, second, (0,))
        record = CheckpointRecord(2, second, 1, msgspec.Raw(b"{}"))
        try:
            commit.commit_checkpoint(HookedFiles(die), layout, record, parts, world_size=2, created_at=0.0)
        except Death:
            commit.recover_commits(LocalFiles(), layout)
            commit.commit_checkpoint(LocalFiles(), layout, record, parts, world_size=2, created_at=0.0)
        promises.must = {first: 1} | {second: 2}
        promises.check()
        if not reused:
            promises.may, promises.must = {first: 1}, {second: 2}
            commit.delete_checkpoint(LocalFiles(), layout, CheckpointRecord(1, first, 1, msgspec.Raw(b"{}")))
            promises.check()
        platter.close()
        if left >= 0:
            break
    assert number > 5, "the commit did not get to where its driver dies"
