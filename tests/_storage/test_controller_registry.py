"""The token and the note of a detached run's controller."""

import threading

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from paceline._storage.arrow_store import ArrowStore
from paceline._storage.controller_registry import (
    ControllerNote,
    DetachedOutcome,
    DiskControllerRegistry,
    RemoteControllerRegistry,
)
from paceline._storage.run_location import RunLocation


def test_a_token_is_private_and_created_once(tmp_path):
    tokens = []
    start = threading.Barrier(8)

    def make():
        start.wait()
        tokens.append(DiskControllerRegistry(tmp_path / "run" / ".controller").get_or_create_token())

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


@pytest.mark.parametrize("kind", ["disk", "store"])
def test_token_and_note_are_read_as_last_written(tmp_path, kind):
    def open_desk():
        if kind == "disk":
            return RunLocation(str(tmp_path), "run").open_controller_registry()
        return RemoteControllerRegistry(
            ArrowStore(SubTreeFileSystem(str(tmp_path), LocalFileSystem()), "run", "s3://runs/run")
        )

    desk = open_desk()
    assert (desk.read_token(), desk.read_note()) == (None, None)
    token = desk.get_or_create_token()
    assert (open_desk().read_token(), open_desk().get_or_create_token()) == (token, token)
    assert (tmp_path / "run" / ".controller" / "token").read_text() == token
    for note in (ControllerNote("10.0.0.1:6379"), ControllerNote("10.0.0.1:6379", DetachedOutcome(1, "rank 0 failed"))):
        desk.write_note(note)
        assert open_desk().read_note() == note
