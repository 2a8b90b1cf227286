"""What a controller leaves with its run: a token that is made once, and a note that is rewritten."""

import threading

from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from paceline._storage.arrow_store import ArrowStore
from paceline._storage.desk import DiskDesk, Ended, Note, StoreDesk
from paceline._storage.home import Home


def test_a_token_is_for_the_owner_alone_and_made_once_by_whoever_comes(tmp_path):
    tokens = []
    start = threading.Barrier(8)

    def make():
        start.wait()
        tokens.append(DiskDesk(tmp_path / "run" / ".controller").made_token())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 8
    assert len(set(tokens)) == 1
    assert len(tokens[0]) == 32
    files = list((tmp_path / "run" / ".controller").iterdir())
    assert [file.name for file in files] == ["token"]
    assert files[0].stat().st_mode & 0o777 == 0o600
    assert files[0].parent.stat().st_mode & 0o777 == 0o700


def test_a_note_is_what_was_left_last(tmp_path):
    desk = Home(str(tmp_path), "run").desk()
    assert (desk.token(), desk.note()) == (None, None)
    desk.made_token()
    for note in (Note("10.0.0.1:6379"), Note("10.0.0.1:6379", Ended(1, "rank 0 failed"))):
        desk.leave(note)
        assert Home(str(tmp_path), "run").desk().note() == note


def test_in_a_store_they_are_objects(tmp_path):
    (tmp_path / "bucket").mkdir()
    store = ArrowStore(SubTreeFileSystem(str(tmp_path / "bucket"), LocalFileSystem()), "runs/run", "s3://runs/run")
    desk = StoreDesk(store)
    assert (desk.token(), desk.note()) == (None, None)
    token = desk.made_token()
    assert StoreDesk(store).made_token() == token
    desk.leave(Note("10.0.0.1:6379", Ended(0, "")))
    assert StoreDesk(store).note() == Note("10.0.0.1:6379", Ended(0, ""))
    assert (tmp_path / "bucket" / "runs" / "run" / ".controller" / "token").read_text() == token
