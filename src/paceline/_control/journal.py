"""The run's memory: one checksummed line per event, in order, by one writer.

Lines are gathered and written together just before the commands they caused are carried out. A line that was written
survives the death of every process; `sync` makes it survive the power. A torn tail is cut off when a driver opens the
journal again, so that new lines never follow a broken one.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline._control import events
from paceline._control.events import JOURNAL_VERSION, DriverStarted, Event
from paceline._core.codec import sealed, valid_lines
from paceline._core.errors import StorageError
from paceline._engine.messages import WorkerFailed, WorkerReturned
from paceline._storage.files import with_room, write_some
from paceline._storage.lease import UNFENCED, Fence

_COPIED_AT_ONCE = 1 << 20
_SEARCH = b'{"type":"SearchStarted"'
"""The journal of a search is written in the same way, and begins so."""


class JournalVersionError(StorageError):
    """The journal was written by a newer version of Paceline."""


@dataclass(frozen=True)
class Language:
    """Of what a journal tells: a run, or a search."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


class Journal:
    def __init__(self, path: Path, encode: Callable[[Any], bytes] | None = None) -> None:
        """`encode`: None for the events of a run."""
        self.path = path
        self._encode = encode if encode is not None else _encoded
        self.unsynced = False
        """Something was flushed since a sync was last asked for; whoever asks for one says so here."""
        self._unwritten = bytearray()
        self._failing = False
        self._dirty = False
        """Something was written since it was last synced."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, event: Any) -> None:
        self._unwritten += sealed(self._encode(event))

    def flush(self) -> None:
        # Only what was written is let go: a line cut by a full disk is continued, not followed by another.
        try:
            while self._unwritten:
                self.unsynced = self._dirty = True
                del self._unwritten[: write_some(self._fd, self._unwritten)]
        except OSError as error:
            self._failing = True
            told = with_room(error, self.path, len(self._unwritten))
            raise StorageError(f"the run's journal could not be written: {told}") from error
        self._failing = False

    def sync(self) -> None:
        self.flush()
        self.sync_written()

    def sync_written(self) -> None:
        """Make what was flushed survive the power. May be called from another thread."""
        self._dirty = False  # Before, not after: what is written meanwhile may not be covered.
        try:
            os.fsync(self._fd)
        except OSError as error:
            self._failing = True
            told = with_room(error, self.path, 0)
            raise StorageError(f"the run's journal could not be written: {told}") from error

    def cut(self, length: int) -> None:
        """Set aside what follows the valid prefix."""
        # By its descriptor: at its path there may be the journal of a driver that took over.
        size = os.fstat(self._fd).st_size
        if size > length:
            with open(self.path.with_name(f"{self.path.name}.torn"), "ab", opener=_private) as aside:
                aside.write(os.pread(self._fd, size - length, length))
                aside.flush()
                os.fsync(aside.fileno())
            os.ftruncate(self._fd, length)
            os.fsync(self._fd)

    def close(self) -> None:
        """Write what is left and let go. After a write that failed, which was raised then, only let go."""
        try:
            if self._fd >= 0 and not self._failing:
                self.flush()
                if self._dirty:
                    self.sync_written()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go, and leave unwritten what is: the run may belong to another driver."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Reading:
    """The events of a journal, up to the first line that is torn or altered; none where there is no journal.

    One after the other, since all of them together may be more than fits into memory.
    """

    def __init__(self, path: Path, language: Language | None = None) -> None:
        """`language`: None for that of a run."""
        self.path = path
        self.language = language if language is not None else OF_RUNS
        self.length = 0
        """Of the lines whose events were given, in bytes."""

    def __iter__(self) -> Iterator[Any]:
        self.length = 0
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            for line, payload in enumerate(valid_lines(file), start=1):
                language = self.language
                event = decoded(payload, self.path, line, language.decode if language is not OF_RUNS else None)
                self.length += len(payload) + 10
                yield event


def read(path: Path) -> list[Event]:
    return list(Reading(path))


def reopened(reading: Reading, fence: Fence = UNFENCED, *, apart: bool = False) -> Journal:
    """A journal that was read to its end, ready to be continued; whatever follows the valid prefix is set aside.

    `apart`: in a new file, because a driver that was not seen to end may still have the old one open. The check comes
    after opening and before any change: a driver that takes over later does so apart from what was opened here.
    """
    path = reading.path
    if apart and path.exists():
        fence.check()
        _replace_by_copy(path, reading.length)
    book = Journal(path, reading.language.encode)
    try:
        fence.check()
        book.cut(reading.length)
    except BaseException:
        book.abandon()
        raise
    return book


def decoded(
    payload: bytes, path: Path | str, line: int | None = None, decode: Callable[[bytes], Any] | None = None
) -> Any:
    """The event of a line whose checksum holds: one that is not understood is no damage, another version wrote it."""
    try:
        event = (decode if decode is not None else _decoded)(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError) as problem:
        if decode is None and payload.startswith(_SEARCH):
            raise StorageError(
                f"{path} holds a search, not a run\n\n"
                "hint: give the run another name; paceline.tune.ResultGrid.from_path reads the search"
            ) from None
        at = f"{path}: line {line} of the journal" if line is not None else f"{path}: a line"
        raise JournalVersionError(
            f"{at} is not understood by this version of Paceline ({problem})\n\n"
            "hint: open the run with the version that wrote it, or a newer one"
        ) from None
    return event


def _decoded(payload: bytes) -> Event:
    try:
        event: Event = events.decode(payload)
    except msgspec.ValidationError:
        check_version(payload, DriverStarted, JOURNAL_VERSION, "journal")
        raise
    if type(event) is DriverStarted:
        check_version(payload, DriverStarted, JOURNAL_VERSION, "journal")
    return event


class _Versioned(msgspec.Struct, frozen=True):
    type: str = ""
    version: int = 0


_decode_version = msgspec.json.Decoder(_Versioned).decode


def check_version(payload: bytes, first: type[Any], known: int, what: str) -> None:
    """Refuse a line with which a driver of a newer version began, whatever else the line says."""
    line = _decode_version(payload)
    if line.type == first.__name__ and line.version > known:
        raise msgspec.ValidationError(f"{what} version {line.version}, known up to {known}")


def _encoded(event: Event) -> bytes:
    return events.encode(_without_pickle(event))


OF_RUNS = Language(_encoded, _decoded)


def _replace_by_copy(path: Path, length: int) -> None:
    copy = path.with_name(f"{path.name}.part")
    with path.open("rb") as old, open(copy, "wb", opener=_private) as new:
        while data := old.read(min(length - new.tell(), _COPIED_AT_ONCE)):
            new.write(data)
        new.flush()
        os.fsync(new.fileno())
    copy.rename(path)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _without_pickle(event: Event) -> Event:
    """Storage holds no pickle: an object or exception that has no plain form stays in memory."""
    if isinstance(event, WorkerReturned | WorkerFailed) and event.pickled is not None:
        return msgspec.structs.replace(event, pickled=None)
    return event
