"""The mailbox of a run, on a disk and in a store, in which anybody may have put anything."""

import os
import time
import uuid

import pytest

from paceline._storage import mailbox
from paceline._storage.address import open_store_at
from paceline._storage.mailbox import EXPIRY_S, MAX_BYTES, DiskMailbox, RemoteMailbox


@pytest.fixture
def directory(tmp_path):
    return tmp_path / ".requests"


@pytest.fixture(params=["disk", "store"])
def box(request, directory):
    store = open_store_at(f"memory://{uuid.uuid4().hex}")
    box = DiskMailbox(directory) if request.param == "disk" else RemoteMailbox(lambda: store)
    box.open()
    return box


def test_a_request_is_taken_and_answered_and_both_are_removed(box, directory):
    for id in ("b", "a", "c"):
        box.put(id, id.encode())
    assert box.is_open()
    assert box.list_waiting() == ["a", "b", "c"]
    assert [box.read(id) for id in ("a", "b", "nobody")] == [b"a", b"b", None]
    box.remove("a")
    assert box.read_answer("a") is None
    for id in ("a", "b"):
        box.write_answer(id, b"x" * (MAX_BYTES + 1))
        assert box.read_answer(id) == b"x" * (MAX_BYTES + 1), "the driver's own are not limited"
    assert box.list_waiting() == ["b", "c"]
    box.withdraw("b")
    assert (box.list_waiting(), box.read("b"), box.read_answer("b")) == (["c"], None, None)
    if isinstance(box, RemoteMailbox):
        box.open()
        assert (box.list_waiting(), box.read_answer("a")) == (["c"], None), "the next driver removes old answers"
        return
    assert {file.name: oct(file.stat().st_mode)[-3:] for file in directory.iterdir()} == {
        "a.answer.json": "600",
        "c.json": "600",
    }
    box.close()
    assert box.is_open(), "somebody still waits"
    for id in ("a", "c"):
        box.withdraw(id)
    box.close()
    assert (box.is_open(), box.read_answer("c"), DiskMailbox(directory).read_answer("c")) == (False, None, None)
    assert (box.list_waiting(), box.is_open()) == ([], True), "the driver creates it again"


def test_only_small_regular_files_with_a_valid_name_are_read(box, directory):
    box.put("full", b"x" * MAX_BYTES)
    box.put("large", b"x" * (MAX_BYTES + 1))
    for id in ("d" * 64, "d" * 65, "a b", "é", ""):
        box.put(id, b"{}")
    if isinstance(box, RemoteMailbox):
        box.put("deep/er", b"{}")
        assert box.list_waiting() == ["d" * 64, "full"]
        return
    os.mkfifo(directory / "pipe.json")
    (directory / "link.json").symlink_to(directory / "full.json")
    (directory / "folder.json").mkdir()
    (directory / "text").write_text("x")
    assert box.list_waiting() == sorted(["d" * 64, "full", "large", "pipe", "link", "folder"])
    assert box.read("full") == b"x" * MAX_BYTES
    assert [box.read(id) for id in ("large", "pipe", "link", "folder")] == [None] * 4


def test_old_answers_expire_but_no_request_does(directory, monkeypatch):
    monkeypatch.setattr(mailbox, "NFS_REFRESH_S", 1e9)
    box = DiskMailbox(directory)
    box.open()
    for name in ("old.json", "old.answer.json", "old.json.part", "new.answer.json"):
        (directory / name).write_bytes(b"{}")
        os.utime(directory / name, (time.time() - EXPIRY_S + (-60 if "old" in name else 60),) * 2)
    for is_touched in (True, False):
        os.utime(directory, (0, 0))
        assert box.list_waiting() == ["old"]
        assert (directory.stat().st_mtime > 0) is is_touched, "now and then, NFS is made to look at the server"
        assert sorted(os.listdir(directory)) == ["new.answer.json", "old.json"]
