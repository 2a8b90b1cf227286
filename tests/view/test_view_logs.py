"""Logs by pages, in both directions, with search, none outside of the run; and in a store while the run goes on."""

import os
import tracemalloc
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._storage import run_store
from paceline._storage.files import LocalFiles
from paceline._storage.lease import UNFENCED
from paceline._storage.run_location import RunLocation
from paceline._view import logs


@pytest.fixture
def location(tmp_path):
    return RunLocation.from_path(str(tmp_path / "run"))


def write(location, data, attempt=1, rank=0):
    path = location.layout.log(attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (1, 1))
    return path


def texts(page):
    return [line.text for line in page.lines]


SOME = [b"a", b"", b"x" * 9, "ä".encode(), b"bar 1\rbar 2", b"end\r", b"\xff\xfe", b"needle", b"NeedLE"]
searches = st.sampled_from([None, "needle", "Ä", "bar 1", "bar 2"])


@given(st.lists(st.sampled_from(SOME), max_size=20), st.booleans(), st.integers(1, 6), st.integers(1, 16), searches)
@settings(max_examples=60, deadline=None)
def test_pages_of_any_size_in_either_direction_have_every_line_once(
    tmp_path_factory, lines, torn, limit, piece, search
):
    location = RunLocation.from_path(str(tmp_path_factory.mktemp("logs") / "run"))
    data = b"\n".join(lines) + (b"" if torn or not lines else b"\n")
    write(location, data)
    shown = [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in data.split(b"\n")]
    if data.endswith(b"\n") or not data:
        shown.pop()
    expected = [text for text in shown if search is None or search.casefold() in text.casefold()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_PIECE", piece)
        forwards, after = [], 0
        while True:
            page = logs.read_log_page(location, 1, 0, after=after, limit=limit, search=search)
            forwards += texts(page)
            assert page.after >= after
            if page.after == page.num_bytes:
                break
            after = page.after
        backwards, before = [], None
        while True:
            page = logs.read_log_page(location, 1, 0, before=before, limit=limit, search=search)
            backwards = texts(page) + backwards
            if page.before is None:
                break
            before = page.before
    assert forwards == expected
    assert backwards == expected
    for line in logs.read_log_page(location, 1, 0, limit=100).lines:
        assert data[line.offset :].split(b"\n")[0].rstrip(b"\r").endswith(line.text.encode()) or "\ufffd" in line.text


def test_a_line_that_is_being_written_is_left_for_the_next_time(location):
    path = write(location, b"whole\nhal")
    os.utime(path, (4e9, 4e9))  # However slow this machine is, it was written to just now.
    page = logs.read_log_page(location, 1, 0, after=0)
    assert (texts(page), page.after) == (["whole"], 6)
    with path.open("ab") as file:
        file.write(b"f a line\n")
    assert texts(logs.read_log_page(location, 1, 0, after=page.after)) == ["half a line"]


def test_a_large_log_is_searched_without_holding_it_in_memory(location):
    path = write(location, b"")
    filler = b"".join(b"%07d nothing of interest happens here, as usual\n" % i for i in range(20_000))
    with path.open("wb") as file:
        file.write(b"The NEEDLE is the first line\n")
        for _ in range(64):
            file.write(filler)
        file.write(b"one long line without an end " * (1 << 18))
    tracemalloc.start()
    page = logs.read_log_page(location, 1, 0, search="needle", limit=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert texts(page) == ["The NEEDLE is the first line"]
    assert peak < 40 << 20, f"{peak >> 20} MB for {path.stat().st_size >> 20}"


def test_logs_are_listed_by_attempt_and_rank_and_those_of_validations_last(location, tmp_path):
    for attempt, rank in ((2, 0), (1, 10), (1, 2)):
        write(location, b"x\n", attempt, rank)
    validation = location.layout.validation_log("checkpoint_000003")
    validation.parent.mkdir()
    validation.write_text("validated\n")
    (tmp_path / "secret").write_text("secret\n")
    location.layout.log(1, 7).symlink_to(tmp_path / "secret")
    *of_ranks, last = (log.name for log in logs.list_log_files(location))
    assert of_ranks == ["attempt 1, rank 2", "attempt 1, rank 10", "attempt 2, rank 0"]
    assert last == "validation of checkpoint_000003"
    assert texts(logs.read_log_page(location, 0, 0)) == ["validated"]
    with pytest.raises(KeyError):
        logs.read_log_page(location, 1, 7)


def test_a_path_that_leads_out_of_the_run_is_none_of_its_files(location, tmp_path):
    location.layout.root.mkdir()
    (location.layout.root / "link").symlink_to(tmp_path)
    assert logs.resolve_inside(location, "logs/attempt_1/rank_0.log") is not None
    for path in ("/etc/passwd", "../run2/x", "logs/../../x", "", "a\0b", "link/x"):
        assert logs.resolve_inside(location, path) is None, path


@pytest.fixture
def in_store(tmp_path, monkeypatch):
    """A run in a store: its location, where it is written, and its log, which has a line."""
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    location = RunLocation(f"memory://{uuid.uuid4().hex}", "run")
    opened = location.open_run_store(LocalFiles(), is_new=True, fence=UNFENCED)
    location.layout.journal.write_bytes(b"line\n")
    return location, opened, write(location, b"one\n")


def test_logs_that_grew_are_in_the_store_before_the_run_ends_the_more_seldom_the_larger_they_are(in_store, monkeypatch):
    def upload(after_s=0.0):
        nonlocal now
        now += after_s
        opened.upload_journal()

    location, opened, log = in_store
    interval_s, now = run_store.LOG_UPLOAD_INTERVAL_S, 100.0
    monkeypatch.setattr(run_store.time, "monotonic", lambda: now)
    upload()
    assert logs.list_log_files(location) == ()
    upload(interval_s)
    assert texts(logs.read_log_page(location, 1, 0)) == ["one"]
    log.write_bytes(b"one\ntwo\n")
    upload()
    assert texts(logs.read_log_page(location, 1, 0)) == ["one"], "not so soon again"
    upload(interval_s)
    assert texts(logs.read_log_page(location, 1, 0)) == ["one", "two"]
    log.write_bytes(b"x" * (3 * run_store._SMALL_LOG_BYTES))
    upload(interval_s)
    log.write_bytes(b"y" * (4 * run_store._SMALL_LOG_BYTES))
    upload(2 * interval_s)
    assert logs.list_log_files(location)[0].num_bytes == 3 * run_store._SMALL_LOG_BYTES, "a large one"
    opened.close()
    assert logs.list_log_files(location)[0].num_bytes == 4 * run_store._SMALL_LOG_BYTES
