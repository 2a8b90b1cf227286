"""The mailbox of a run, on a disk and in a store, in which anybody may have put anything."""

import os
import time
import uuid

import pytest

from paceline._storage import mailbox
from paceline._storage.address import open_store_at
from paceline._storage.mailbox import EXPIRY_S, MAX_BYTES, DiskMailbox, RemoteMailbox


@pytest.fixture(params=["disk", "store"])
def box(request, tmp_path):
    store = open_store_at(f"memory://{uuid.uuid4().hex}")
    box = DiskMailbox(tmp_path / "box") if request.param == "disk" else RemoteMailbox(lambda: store)
    for _ in range(2):  # A driver that died may have left it open.
        box.open()
    return box


def test_a_request_is_read_and_answered_and_both_are_removed(box, tmp_path):
    directory = tmp_path / "box"
    large = b"x" * (MAX_BYTES + 1)
    for id in ("b", "a", "c"):
        box.put(id, id.encode())
    assert (box.is_open(), box.list_waiting()) == (True, ["a", "b", "c"])
    assert [box.read(id) for id in ("a", "b", "nobody")] == [b"a", b"b", None]
    box.remove("a")
    assert box.read_answer("a") is None
    for id in ("a", "b"):
        box.write_answer(id, large)
        assert box.read_answer(id) == large, "only requests are limited"
    assert box.list_waiting() == ["b", "c"]
    box.withdraw("b")
    assert (box.list_waiting(), box.read("b"), box.read_answer("b")) == (["c"], None, None)
    if isinstance(box, RemoteMailbox):
        box.open()
        assert (box.list_waiting(), box.read_answer("a")) == (["c"], None), "the next driver removes old answers"
        return
    assert sorted(os.listdir(directory)) == ["a.answer.json", "c.json"]
    assert directory.stat().st_mode & 0o777 == 0o700
    for id in ("a", "c"):
        box.close()
        assert box.is_open(), "somebody still waits"
        box.withdraw(id)
    box.close()
    assert (box.is_open(), box.read_answer("c"), DiskMailbox(directory).read_answer("c")) == (False, None, None)
    assert (box.list_waiting(), box.is_open()) == ([], True), "the driver creates it again"


def test_only_small_regular_files_with_a_valid_name_are_read(box, tmp_path):
    box.put("full", b"x" * MAX_BYTES)
    box.put("large", b"x" * (MAX_BYTES + 1))
    for id in ("d" * 64, "d" * 65, "a b", "é", ""):
        box.put(id, b"{}")
    if isinstance(box, RemoteMailbox):
        box.put("deep/er", b"{}")
        assert box.list_waiting() == ["d" * 64, "full"]
        return
    directory = tmp_path / "box"
    os.mkfifo(directory / "pipe.json")
    (directory / "link.json").symlink_to(directory / "full.json")
    (directory / "folder.json").mkdir()
    assert box.list_waiting() == sorted(["d" * 64, "full", "large", "pipe", "link", "folder"])
    assert box.read("full") == b"x" * MAX_BYTES
    assert [box.read(id) for id in ("large", "pipe", "link", "folder")] == [None] * 4


def test_old_answers_expire_but_no_request_does(tmp_path, monkeypatch):
    monkeypatch.setattr(mailbox, "NFS_REFRESH_S", 1e9)
    box = DiskMailbox(tmp_path)
    requests = [f"{number}.json" for number in range(8)]
    stale = [f"{number}.answer.json" for number in range(8)] + ["8.json.part"]
    for is_due in (True, False):
        for name in (*requests, *stale, "9.answer.json"):
            (tmp_path / name).write_bytes(b"{}")
            os.utime(tmp_path / name, (time.time() - EXPIRY_S + (60 if name == "9.answer.json" else -60),) * 2)
        os.utime(tmp_path, (0, 0))
        assert box.list_waiting() == list("01234567")
        assert (tmp_path.stat().st_mtime > 0) is is_due, "now and then, NFS is made to look at the server"
        assert sorted(os.listdir(tmp_path)) == sorted([*requests, "9.answer.json", *([] if is_due else stale)])
