"""The journal in a store: consecutive segments, one writer, and which of two journals counts."""

import contextlib
import gzip
import uuid

import pytest
from saving import Lost

from paceline._core.errors import RunHeldError, StorageError
from paceline._storage.address import open_store_at
from paceline._storage.files import LocalFiles
from paceline._storage.lease import NoFence
from paceline._storage.run_store import JournalUploader, read_stored_journal, reconcile_journal
from paceline._view.journal.tail import RemoteJournalTail


@pytest.fixture
def store():
    return open_store_at(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


class Held(NoFence):
    number = 2


def append(path, text):
    with path.open("ab") as file:
        file.write(text)


def test_segments_hold_whole_lines_and_the_next_driver_continues_them(store, path):
    segments = JournalUploader(store, path)
    for text, journal in ((b"one\ntw", b"one\n"), (b"o\nthree\n", b"one\ntwo\nthree\n"), (b"", b"one\ntwo\nthree\n")):
        append(path, text)
        segments.upload_new()
        assert read_stored_journal(store) == journal
    assert [entry.key for entry in store.list_entries()] == ["journal/0000000000000000", "journal/0000000000000004"]
    append(path, b"four\n")
    JournalUploader(store, path, len(read_stored_journal(store))).upload_new()
    assert read_stored_journal(store) == b"one\ntwo\nthree\nfour\n"


def test_large_segments_are_compressed_also_for_those_who_follow(store, path):
    segments, tail, followed = JournalUploader(store, path), RemoteJournalTail(store), b""
    for number in range(3):
        append(path, b"".join(b"line %d of part %d\n" % (line, number) for line in range(1000)))
        segments.upload_new()
        assert not tail.reset_if_replaced()
        while data := tail.read_new():
            followed += data
            tail.mark_read(data, len(data))
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
    store.create("journal/0000000000000000", b"theirs\n")
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


@pytest.mark.parametrize("fence", [Held(), Lost()], ids=["holder", "late"])
def test_a_segment_that_came_too_late_from_a_driver_that_lost_the_run_is_replaced_by_the_holder_alone(
    store, path, fence
):
    path.write_bytes(b"ours\n")
    segments = JournalUploader(store, path, fence=fence)
    store.create("journal/0000000000000000", b"too late\n")
    with pytest.raises(RunHeldError, match="taken over") if isinstance(fence, Lost) else contextlib.nullcontext():
        segments.upload_new()
        append(path, b"more\n")
        segments.upload_new()
    assert read_stored_journal(store) == (b"too late\n" if isinstance(fence, Lost) else b"ours\nmore\n")


def test_a_missing_segment_is_an_error_and_not_a_shorter_journal(store, path):
    segments = JournalUploader(store, path)
    for text in (b"one\n", b"two\n", b"three\n"):
        append(path, text)
        segments.upload_new()
    store.delete("journal/0000000000000004")
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
