"""Logs of a run in a store are brought there while it goes on, the more seldom the larger they are."""

import uuid

import pytest

from paceline._storage import run_store as depots
from paceline._storage.files import LocalFiles
from paceline._storage.run_location import RunLocation
from paceline._view import logs


@pytest.fixture
def location(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    return RunLocation(f"memory://{uuid.uuid4().hex}", "run")


def test_logs_that_grew_are_there_before_the_run_ends(location, monkeypatch):
    now = 100.0
    monkeypatch.setattr(depots.time, "monotonic", lambda: now)
    run_store = location.open_run_store(LocalFiles(), is_new=True)
    location.layout.journal.write_bytes(b"line\n")
    log = location.layout.log(1, 0)
    log.parent.mkdir(parents=True)
    log.write_bytes(b"one\n")
    run_store.upload_journal()
    assert logs.list_log_files(location) == ()
    now += depots.LOG_UPLOAD_INTERVAL_S
    run_store.upload_journal()
    assert [line.text for line in logs.read_log_page(location, 1, 0).lines] == ["one"]
    log.write_bytes(b"one\ntwo\n")
    run_store.upload_journal()
    assert [line.text for line in logs.read_log_page(location, 1, 0).lines] == ["one"], "not so soon again"
    now += depots.LOG_UPLOAD_INTERVAL_S
    run_store.upload_journal()
    assert [line.text for line in logs.read_log_page(location, 1, 0).lines] == ["one", "two"]
    log.write_bytes(b"x" * (3 * depots._SMALL_LOG_BYTES))
    now += depots.LOG_UPLOAD_INTERVAL_S
    run_store.upload_journal()
    log.write_bytes(b"y" * (4 * depots._SMALL_LOG_BYTES))
    now += 2 * depots.LOG_UPLOAD_INTERVAL_S
    run_store.upload_journal()
    assert logs.list_log_files(location)[0].num_bytes == 3 * depots._SMALL_LOG_BYTES, "a large one"
    run_store.close()
    assert logs.list_log_files(location)[0].num_bytes == 4 * depots._SMALL_LOG_BYTES


def test_a_log_that_cannot_be_brought_over_is_tried_again_and_said_once(location, monkeypatch, caplog):
    monkeypatch.setattr(depots, "LOG_UPLOAD_INTERVAL_S", 0.0)
    run_store = location.open_run_store(LocalFiles(), is_new=True)
    location.layout.journal.write_bytes(b"line\n")
    log = location.layout.log(1, 0)
    log.parent.mkdir(parents=True)
    log.write_bytes(b"one\n")

    def refuse(path):
        raise OSError("no room there")

    with monkeypatch.context() as patch:
        patch.setattr(run_store, "_upload_logs", refuse)
        run_store.upload_journal()
        run_store.upload_journal()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no room there" in caplog.text
    run_store.upload_journal()
    assert len(logs.list_log_files(location)) == 1
