"""The journal of a run: one checksummed line per event, in order, by one writer.

Lines are buffered, and written together just before the commands they caused are executed. A written line survives the
death of every process; after `sync` it survives a power failure. A torn tail is cut off when a driver reopens the
journal, so that new lines never follow a broken one.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline._control import events
from paceline._control.events import JOURNAL_VERSION, DriverStarted, Event
from paceline._core.codec import seal_line, valid_lines, valid_prefix
from paceline._core.errors import StorageError
from paceline._core.system import open_private
from paceline._engine.messages import WorkerFailed, WorkerReturned
from paceline._storage.files import LocalFiles, add_disk_details, write_retrying_full_disk
from paceline._storage.journal_archive import iter_archived_blocks, iter_archives
from paceline._storage.lease import UNFENCED, Fence
from paceline._storage.replacement import prepared_path, replace_file

_COPY_CHUNK_BYTES = 1 << 20
_SEARCH_PREFIX = b'{"type":"search_started"'
"""How the journal of a search begins, which has the same format."""


class JournalVersionError(StorageError):
    """A newer version of Paceline wrote the journal."""


@dataclass(frozen=True)
class JournalCodec:
    """Encodes and decodes the events of a journal: of a run, or of a search."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _decode_run_event(payload: bytes) -> Event:
    try:
        event: Event = events.decode_event(payload)
    except msgspec.ValidationError:
        check_version(payload, DriverStarted, JOURNAL_VERSION, "journal")
        raise
    if type(event) is DriverStarted:
        check_version(payload, DriverStarted, JOURNAL_VERSION, "journal")
    return event


class _VersionLine(msgspec.Struct, frozen=True):
    type: str = ""
    version: int = 0


_decode_version = msgspec.json.Decoder(_VersionLine).decode


def check_version(payload: bytes, first: type[Any], supported: int, noun: str) -> None:
    """Refuse the first line of a driver with a newer version, whatever else it contains."""
    line = _decode_version(payload)
    if line.type == first.__struct_config__.tag and line.version > supported:
        raise msgspec.ValidationError(f"{noun} version {line.version}, supported up to {supported}")


def encode_run_event(event: Event) -> bytes:
    # Pickles are never stored: an object or exception without a plain form stays in memory.
    if isinstance(event, _WITH_PICKLES) and event.pickled is not None:
        event = msgspec.structs.replace(event, pickled=None)
    return events.encode_event(event)


_WITH_PICKLES = (WorkerReturned, WorkerFailed)

RUN_CODEC = JournalCodec(encode_run_event, _decode_run_event)


class Journal:
    def __init__(self, path: Path, codec: JournalCodec = RUN_CODEC) -> None:
        self.path = path
        self._codec = codec
        self.has_unsynced = False
        """Something was flushed since the last sync was requested; the requester resets this."""
        self._unwritten = bytearray()
        self._failing = False
        self._dirty = False
        """Something was written since the last sync."""
        self.length = 0
        """Size of the lines in the file."""
        self.num_lines = 0
        """How many lines there are, also archived ones and those that are not written yet."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def fileno(self) -> int:
        return self._fd

    def append(self, event: Any) -> None:
        self._unwritten += seal_line(self._codec.encode(event))
        self.num_lines += 1

    def flush(self) -> None:
        # Drop only what was written: a line cut short by a full disk is continued, not followed by another.
        try:
            while self._unwritten:
                self.has_unsynced = self._dirty = True
                num_written = write_retrying_full_disk(self._fd, self._unwritten)
                self.length += num_written
                del self._unwritten[:num_written]
        except OSError as error:
            raise self._write_error(error, len(self._unwritten)) from error
        self._failing = False

    def sync(self) -> None:
        self.flush()
        self.sync_written()

    def sync_written(self) -> None:
        """Make flushed lines survive a power failure. Thread-safe."""
        self._dirty = False  # Reset before the sync, which may not cover what is written meanwhile.
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._write_error(error, 0) from error

    def _write_error(self, error: OSError, num_bytes: int) -> StorageError:
        self._failing = True
        return StorageError(f"the run's journal cannot be written: {add_disk_details(error, self.path, num_bytes)}")

    def truncate(self, length: int) -> None:
        """Move what follows the valid prefix to a `.torn` file."""
        # By descriptor: the path may already hold the journal of a driver that took over.
        size = os.fstat(self._fd).st_size
        if size > length:
            with open(self.path.with_name(f"{self.path.name}.torn"), "ab", opener=open_private) as file:
                file.write(os.pread(self._fd, size - length, length))
                file.flush()
                os.fsync(file.fileno())
            os.ftruncate(self._fd, length)
            os.fsync(self._fd)

    def close(self) -> None:
        """Write what is left and close the file. After a failed write, which has raised already, only close it."""
        try:
            if self._fd >= 0 and not self._failing:
                self.flush()
                if self._dirty:
                    self.sync_written()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without writing what is buffered: the run may belong to another driver."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class JournalReader:
    """Iterates over the events of a journal, up to the first torn or altered line; empty if there is no journal.

    Yields one event at a time, because all of them may not fit into memory.
    """

    def __init__(self, path: Path, codec: JournalCodec = RUN_CODEC, *, length: int = 0, num_lines: int = 0) -> None:
        """`length` and `num_lines`: what to skip, because it is known."""
        self.path = path
        self.codec = codec
        self._start = length, num_lines
        self.length = length
        """Size of the lines read so far, in bytes."""
        self.num_lines = num_lines

    def __iter__(self) -> Iterator[Any]:
        self.length, self.num_lines = self._start
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            if self.length == 0:
                for archive in iter_archives(file):
                    for block in iter_archived_blocks(self.path, archive):
                        yield from map(self._decode, valid_prefix(block))
                    self.length = file.tell()
            file.seek(self.length)
            for payload in valid_lines(file):
                event = self._decode(payload)
                self.length += len(payload) + 10
                yield event

    def _decode(self, payload: bytes) -> Any:
        self.num_lines += 1
        return decode_line(payload, self.path, self.num_lines, self.codec)


def read_events(path: Path) -> list[Event]:
    return list(JournalReader(path))


def reopen_journal(reader: JournalReader, fence: Fence = UNFENCED, *, in_new_file: bool = False) -> Journal:
    """Open a journal for appending after it was read to its end; move what follows the valid prefix aside.

    `in_new_file`: a driver that was not seen to end may still have the old one open. The fence is checked after opening
    and before any change: a driver that takes over later gets its own file.
    """
    path = reader.path
    if in_new_file and path.exists():
        _replace_by_copy(path, reader.length, fence)
    journal = Journal(path, reader.codec)
    journal.length, journal.num_lines = reader.length, reader.num_lines
    try:
        fence.check()
        journal.truncate(reader.length)
    except BaseException:
        journal.abandon()
        raise
    return journal


def decode_line(payload: bytes, path: Path | str, line: int | None = None, codec: JournalCodec = RUN_CODEC) -> Any:
    """Decode a line whose checksum is valid: if that fails, another version wrote it, and it is not damaged."""
    try:
        return codec.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError) as problem:
        if codec is RUN_CODEC and payload.startswith(_SEARCH_PREFIX):
            raise StorageError(
                f"{path} holds a search, not a run\n\n"
                "hint: give the run another name; paceline.tune.ResultGrid.from_path reads the search"
            ) from None
        at = f"{path}: line {line} of the journal" if line is not None else f"{path}: a line"
        raise JournalVersionError(
            f"{at} cannot be read by this version of Paceline ({problem})\n\n"
            "hint: open the run with the version that wrote it, or a newer one"
        ) from None


def _replace_by_copy(path: Path, length: int, fence: Fence) -> None:
    with path.open("rb") as old, open(prepared_path(path, fence), "wb", opener=open_private) as new:
        while data := old.read(min(length - new.tell(), _COPY_CHUNK_BYTES)):
            new.write(data)
        new.flush()
        os.fsync(new.fileno())
    replace_file(LocalFiles(), path, fence)
    LocalFiles().sync_dir(path.parent)
