"""The journal in a store: consecutive segments, one writer, and which of two journals counts."""

import gzip
import uuid

import pytest
from saving import Lost

from paceline._core.errors import RunHeldError, StorageError
from paceline._storage.address import open_store_at
from paceline._storage.arrow_store import ArrowStore
from paceline._storage.files import LocalFiles
from paceline._storage.journal_segments import JournalUploader, read_stored_journal, reconcile_journal
from paceline._storage.lease import NoFence, acquire_lease
from paceline._storage.run_location import RunLocation
from paceline._view.journal.tail import RemoteJournalTail
from paceline.testing import FakeClock


@pytest.fixture
def store():
    return open_store_at(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


class Held(NoFence):
    def __init__(self, number):
        self.number = number


def key(offset, lease=0, lease_before=0):
    return f"journal/{offset:016d}-{lease:08d}-{lease_before:08d}"


def fail(error):
    raise error


def follow(tail):
    followed = b""
    while data := tail.read_new():
        followed += data
        tail.mark_read(data, len(data))
    return followed


def append(path, text):
    with path.open("ab") as file:
        file.write(text)


def test_segments_hold_whole_lines_and_the_next_driver_continues_them(store, path):
    segments = JournalUploader(store, path)
    for text, journal in ((b"one\ntw", b"one\n"), (b"o\nthree\n", b"one\ntwo\nthree\n"), (b"", b"one\ntwo\nthree\n")):
        append(path, text)
        segments.upload_new()
        assert read_stored_journal(store) == journal
    assert [entry.key for entry in store.list_entries()] == [key(0), key(4)]
    append(path, b"four\n")
    JournalUploader(store, path, len(read_stored_journal(store))).upload_new()
    assert read_stored_journal(store) == b"one\ntwo\nthree\nfour\n"


def test_large_segments_are_compressed_also_for_those_who_follow(store, path):
    segments, tail, followed = JournalUploader(store, path), RemoteJournalTail(store), b""
    for number in range(3):
        append(path, b"".join(b"line %d of part %d\n" % (line, number) for line in range(1000)))
        segments.upload_new()
        assert not tail.reset_if_replaced()
        followed += follow(tail)
    content = path.read_bytes()
    assert read_stored_journal(store) == followed == content
    assert b"".join(gzip.decompress(store.read(entry.key)) for entry in store.list_entries()) == content
    assert sum(entry.size for entry in store.list_entries()) < len(content) / 3
    store.delete_all("journal")
    path.write_bytes(b"another\n")
    JournalUploader(store, path).upload_new()
    assert tail.reset_if_replaced()
    assert tail.read_new() == b"another\n"


def test_the_slower_of_two_drivers_learns_that_the_run_was_taken_over(store, path):
    path.write_bytes(b"ours\n")
    store.create(key(0), b"theirs\n")
    with pytest.raises(RunHeldError, match="taken over"):
        JournalUploader(store, path).upload_new()
    assert read_stored_journal(store) == b"theirs\n"


def test_the_lines_of_a_driver_that_took_over_on_this_machine_are_not_uploaded_by_the_one_before(store, path):
    path.write_bytes(b"ours\n")
    segments = JournalUploader(store, path)
    segments.upload_new()
    path.with_name("copy").write_bytes(b"ours\ntheirs\n")
    path.with_name("copy").rename(path)
    with pytest.raises(RunHeldError, match="taken over"):
        segments.upload_new()
    JournalUploader(store, path, len(b"ours\n")).upload_new()
    assert read_stored_journal(store) == b"ours\ntheirs\n"


def test_a_part_whose_upload_failed_is_uploaded_again_as_it_was_since_it_may_still_arrive(store, path, monkeypatch):
    path.write_bytes(b"one\n")
    segments, late = JournalUploader(store, path), []
    with monkeypatch.context() as patch:
        patch.setattr(ArrowStore, "write", lambda store, *put: late.append(put) or fail(PermissionError("refused")))
        with pytest.raises(StorageError, match="refused"):
            segments.upload_new()
    append(path, b"two\n")
    segments.upload_new()
    store.write(*late[0])
    assert read_stored_journal(store) == b"one\ntwo\n"


def test_an_upload_that_arrives_after_another_driver_took_over_changes_nothing(tmp_path, monkeypatch):
    location, clock, late = RunLocation(f"memory://{uuid.uuid4().hex}", "run"), FakeClock(1000.0), []
    tail = RemoteJournalTail(location.open_store())

    def take_over(machine):
        monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / machine))
        location.layout.root.mkdir(parents=True)
        lease = acquire_lease(
            location.open_lease_store(), ttl_s=30, clock=clock, say=str, wait=clock.advance, alive=lambda holder: None
        )
        return location.open_run_store(LocalFiles(), is_new=lease.number == 1, fence=lease)

    def write(run_store, text):
        append(run_store.layout.journal, text)
        run_store.upload_journal()

    old = take_over("one")
    write(old, b"one\n")
    with monkeypatch.context() as patch:
        patch.setattr(ArrowStore, "write", lambda store, *put: late.append(put) or fail(PermissionError("refused")))
        write(old, b"too late\n")
    new = take_over("two")
    location.open_store().write(*late[0])
    assert not tail.reset_if_replaced()
    assert follow(tail) == b"one\ntoo late\n"
    for text in (b"two\n", b"three\n"):
        write(new, text)
        location.open_store().write(*late[0])
    assert tail.reset_if_replaced()
    assert follow(tail) == new.read_journal() == b"one\ntwo\nthree\n"
    with pytest.raises(RunHeldError, match="was taken over by process"):
        write(old, b"more\n")
    assert take_over("three").layout.journal.read_bytes() == b"one\ntwo\nthree\n"


def test_numbers_that_began_anew_since_the_lease_was_removed_do_not_hide_later_lines(store, path):
    for lease, last_lease in ((7, 0), (1, 7), (2, 8)):
        append(path, b"%d\n" % lease)
        JournalUploader(store, path, len(read_stored_journal(store)), Held(lease), last_lease=last_lease).upload_new()
    assert read_stored_journal(store) == b"7\n1\n2\n"
    with pytest.raises(RunHeldError, match="taken over"):
        JournalUploader(store, path, 6, Lost(), last_lease=9)


def test_a_journal_whose_keys_are_offsets_is_read_and_continued(store, path):
    store.create("journal/0000000000000000", b"one\n")
    store.create("journal/0000000000000004", b"two\n")
    path.write_bytes(b"one\ntwo\nthree\n")
    JournalUploader(store, path, len(read_stored_journal(store)), Held(2)).upload_new()
    assert read_stored_journal(store) == b"one\ntwo\nthree\n"
    store.write("journal/0000000000000008", b"too late\n")
    assert read_stored_journal(store) == b"one\ntwo\nthree\n"


def test_a_missing_segment_is_an_error_and_not_a_shorter_journal(store, path):
    segments = JournalUploader(store, path)
    for text in (b"one\n", b"two\n", b"three\n"):
        append(path, text)
        segments.upload_new()
    store.delete(key(4))
    with pytest.raises(StorageError, match="ends at byte 4, but the next segment is journal/0000000000000008"):
        read_stored_journal(store)


@pytest.mark.parametrize(
    ("local", "journal", "believed"),
    [
        (b"one\ntwo\n", b"one\n", b"one\ntwo\n"),
        (b"one\n", b"one\n", b"one\n"),
        (b"one\n", b"one\ntwo\n", b"one\ntwo\n"),
        (b"other\n", b"one\n", b"one\n"),
        (None, b"one\n", b"one\n"),
    ],
    ids=["a tail of its own", "the same", "behind", "another", "none"],
)
def test_the_local_journal_counts_if_it_continues_the_stored_one(path, local, journal, believed):
    if local is not None:
        path.write_bytes(local)
    reconcile_journal(LocalFiles(), path, journal)
    assert path.read_bytes() == believed
    if local == b"other\n":
        assert path.with_name("journal.jsonl.other").read_bytes() == local
