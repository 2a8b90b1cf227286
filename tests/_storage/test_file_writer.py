"""A large file is written in pieces by several threads, past the page cache where the filesystem allows it."""

import errno
import fcntl
import mmap
import os
import queue
import random
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
import xxhash

from paceline._storage import file_writer
from paceline._storage.file_writer import ALIGNMENT, LargeFileWriter, write_back_growing_files
from paceline._storage.files import LocalFiles, hash_file

PIECE = 4 * ALIGNMENT


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(file_writer, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(file_writer, "MIN_BYTES", 0)


def refuse_direct(monkeypatch, call):
    """A filesystem without O_DIRECT: most refuse to open a file with it, some to write."""
    real, num_refused = getattr(os, call), []

    def refuse(target, *args):
        flags = args[0] if call == "open" else file_flags(target)
        if flags & os.O_DIRECT:
            num_refused.append(1)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(target, *args)

    monkeypatch.setattr(os, call, refuse)
    return num_refused


def file_flags(fd):
    return fcntl.fcntl(fd, fcntl.F_GETFL)


@pytest.fixture(params=["disk", "memory", "refuses to open", "refuses to write"])
def directory(request, tmp_path, monkeypatch):
    if request.param == "memory":
        directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
        yield directory
        shutil.rmtree(directory)
        return
    call = {"refuses to open": "open", "refuses to write": "pwrite"}.get(request.param)
    refused = refuse_direct(monkeypatch, call) if call is not None else [1]
    yield tmp_path
    assert refused, "nobody tried to write directly"


def test_every_byte_of_parts_of_any_length_and_alignment_is_written_once_and_hashed(directory):
    files, dice = LocalFiles(), random.Random(7)
    for num_bytes in (1, ALIGNMENT, PIECE, PIECE + 1, 3 * PIECE - 1, 9 * PIECE + ALIGNMENT + 7):
        memory = mmap.mmap(-1, num_bytes)
        memory[:] = data = dice.randbytes(num_bytes)
        for step in (num_bytes, PIECE, ALIGNMENT + 64):
            parts = [memoryview(memory)[start : start + step] for start in range(0, num_bytes, step)]
            parts = [part.toreadonly() if dice.random() < 0.3 else part for part in parts]
            entry = files.write_parts(directory / "file", parts, num_bytes)
            assert (directory / "file").read_bytes() == data
            assert (entry.path, entry.size, entry.hash) == ("file", num_bytes, xxhash.xxh3_128(data).hexdigest())
        files.remove(directory / "copy")
        assert files.copy(directory / "file", directory / "copy", "file") == entry
        assert (directory / "copy").read_bytes() == data
        assert files.seal(directory / "file", "file") == entry


def test_whole_pages_bypass_the_page_cache_and_one_fsync_follows_the_last_write(tmp_path, monkeypatch):
    calls, pwrite, fsync = [], os.pwrite, os.fsync

    def write(fd, data, offset):
        calls.append(("direct" if file_flags(fd) & os.O_DIRECT else "cached", len(data)))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("sync"), fsync(fd)))
    (tmp_path / "source").write_bytes(bytes(2 * PIECE + ALIGNMENT + 5))
    LocalFiles().copy(tmp_path / "source", tmp_path / "file", "file")
    assert calls[-1] == "sync"
    assert sorted(calls[:-1]) == [("cached", 5), ("direct", ALIGNMENT), ("direct", PIECE), ("direct", PIECE)]


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_file_that_turns_out_shorter_or_longer_has_its_own_size(tmp_path, is_durable):
    data = random.Random(7).randbytes(3 * PIECE + 5)
    (tmp_path / "other").touch()
    mode = 0o600 if is_durable else (tmp_path / "other").stat().st_mode & 0o777
    for expected in (0, PIECE, 9 * PIECE):
        with LargeFileWriter(tmp_path / "file", expected, is_durable=is_durable) as writer:
            writer.add(memoryview(data))
            assert writer.finish("file").size == len(data)
        assert (tmp_path / "file").read_bytes() == data
        assert (tmp_path / "file").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("room", [0, 1, ALIGNMENT, PIECE, 2 * PIECE + 512, 5 * PIECE])
def test_a_disk_that_runs_full_in_the_middle_raises_what_is_missing_and_ends_every_thread(tmp_path, monkeypatch, room):
    pwrite, lock = os.pwrite, threading.Lock()

    def full_after(fd, data, offset):
        nonlocal room
        with lock:
            length = min(room, len(data))
            room -= length
        if not length:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # A disk may stop within a block; a direct write of that length is not possible here.
        if length % ALIGNMENT and file_flags(fd) & os.O_DIRECT:
            with (tmp_path / "file").open("r+b") as file:
                return pwrite(file.fileno(), data[:length], offset)
        return pwrite(fd, data[:length], offset)

    monkeypatch.setattr(os, "pwrite", full_after)
    before = threading.active_count()
    with pytest.raises(OSError, match=r"No space left on device: \d+ bytes needed, \d+ free") as caught:
        LocalFiles().write_parts(tmp_path / "file", [memoryview(bytearray(9 * PIECE))], 9 * PIECE)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "file")
    assert threading.active_count() == before


def test_a_disk_without_the_room_refuses_before_the_first_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *_: pytest.fail("was written to"))
    num_bytes = 1 << 50
    with pytest.raises(OSError, match=f"{tmp_path}") as caught:
        LocalFiles().write_parts(tmp_path / "file", [memoryview(bytearray(PIECE))], num_bytes)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)


def test_an_error_of_whoever_adds_bytes_ends_the_threads_and_is_raised(tmp_path):
    def parts():
        yield memoryview(bytearray(3 * PIECE))
        raise ValueError("no more")

    before = threading.active_count()
    with pytest.raises(ValueError, match="no more"):
        LocalFiles().write_parts(tmp_path / "file", parts(), 9 * PIECE)
    assert threading.active_count() == before


def test_a_failed_fsync_is_an_error_of_the_file(tmp_path, monkeypatch):
    def fail(fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error") as caught:
        LocalFiles().write_parts(tmp_path / "file", [memoryview(bytearray(PIECE))], PIECE)
    assert caught.value.filename == str(tmp_path / "file")


def test_files_are_written_back_while_they_grow_until_their_directory_is_moved(tmp_path, monkeypatch):
    started = queue.SimpleQueue()
    monkeypatch.setattr(file_writer, "MIN_BYTES", PIECE)
    monkeypatch.setattr(file_writer, "start_write_back", lambda fd, *span: started.put((os.fstat(fd).st_ino, *span)))
    directory = tmp_path / "staging"
    (directory / "deep").mkdir(parents=True)
    thread = threading.Thread(target=write_back_growing_files, args=(directory,))
    thread.start()
    path = directory / "deep" / "weights"
    for number in range(3):
        with path.open("ab", buffering=0) as file:
            file.write(bytes(PIECE))
        assert started.get(timeout=240) == (path.stat().st_ino, number * PIECE, PIECE)
    directory.rename(tmp_path / "staged")
    thread.join(60)
    assert not thread.is_alive()
    assert started.empty()


def test_memory_that_its_owner_changes_meanwhile_is_hashed_as_it_is_written(tmp_path, monkeypatch):
    memory, pwrite = mmap.mmap(-1, 9 * PIECE), os.pwrite

    def change_and_write(*args):
        memory[:] = os.urandom(9 * PIECE)
        return pwrite(*args)

    monkeypatch.setattr(os, "pwrite", change_and_write)
    entry = LocalFiles().write_parts(tmp_path / "file", [memoryview(memory).toreadonly()], 9 * PIECE)
    assert entry == hash_file(tmp_path / "file", "file")
