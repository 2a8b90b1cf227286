"""The side of those who take rows: a line to a service, and what an iterator in a worker gets its rows from.

There is no thread here: what the service has announced is read when the next rows are asked for. A block that was
passed is given back when the last view of it is gone.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import cloudpickle
import msgspec

from paceline._core.errors import DataError
from paceline.data.block import Schema
from paceline.data.exec import arena
from paceline.data.exec.failure import Failure
from paceline.data.exec.stats import StreamStats
from paceline.data.exec.wire import Message, Received, Wire
from paceline.data.mixing import Mixing
from paceline.data.position import Delivered

_ENDED = "the service that gives the rows has ended"
_MOST_RELEASED = 200
"""In one message."""


class Line:
    """A connection to a service, for one stream at a time. What was mapped for one is kept for the next."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._heard: deque[Received] = deque()
        self._memory: dict[int, mmap.mmap] = {}
        self._released: deque[tuple[int, int]] = deque()
        self._keys = count(1)
        self._owner = os.getpid()
        self.broken = False
        self._idle = True
        """No stream is open: nothing would be said by itself."""
        self._sending = threading.Lock()  # held while something is said

    def rows(self, asked: Message) -> Iterator[Delivered]:
        """The blocks of a stream, in order; `asked` says which."""
        key = next(self._keys)
        held: set[int] = set()
        self._idle = False
        self._say({"say": "open", "stream": key, **asked})
        try:
            opened = self._next(key).message
            num, waited = 0, 0.0
            while True:
                began = time.perf_counter()
                received = self._next(key)
                waited += time.perf_counter() - began
                if received.message["say"] == "end":
                    return
                yield self._delivered(received.message, opened, held)
                num += 1
                self._say({"say": "passed", "stream": key, "num": num, "waited": waited})
                waited = 0.0
        finally:
            self._leave(key, held)

    def ask(self, dataset: str, what: str) -> Any:
        key = next(self._keys)
        self._say({"say": "ask", "stream": key, "dataset": dataset, "what": what})
        return cloudpickle.loads(self._next(key).data)

    def close(self) -> None:
        self._wire.close()

    def _delivered(self, message: Message, opened: Message, held: set[int]) -> Delivered:
        member, number = opened["member"], message["block"]
        held.add(number)

        def released() -> None:
            held.discard(number)
            self._released.append((member, number))
            if self._idle:
                self._say_released()

        layout = msgspec.convert(message["layout"], arena.Layout)
        block = arena.read(layout, self._memory[message["arena"]], released, writable=opened["writable"])
        return Delivered(message["unit"], message["offset"], block)

    def _leave(self, key: int, held: set[int]) -> None:
        try:
            # Before what is released: a block that goes meanwhile is told of twice rather than never.
            keeps = list(held)
            self._say({"say": "leave", "stream": key, "keeps": keeps})
        except DataError:
            pass  # the service is gone, and there is nothing to leave
        self._idle = True
        self._say_released()

    def _say(self, message: Message) -> None:
        with self._sending:
            if released := self._take_released():
                message["released"] = released
            try:
                self._wire.say(message)
            except OSError as error:
                self.broken = True
                raise DataError(_ENDED) from error

    def _say_released(self) -> None:
        """At any time, in any thread: nothing is waited for, and a fork says nothing for the process it is from."""
        while self._released and self._owner == os.getpid() and self._sending.acquire(blocking=False):
            try:
                if not _takes(self._wire.end):
                    return
                if released := self._take_released():
                    self._wire.say({"say": "released", "released": released})
            except OSError:
                return  # the service is gone, or the line is closed
            finally:
                self._sending.release()

    def _take_released(self) -> dict[str, list[int]]:
        released: dict[str, list[int]] = {}
        with contextlib.suppress(IndexError):  # another thread may have taken what there was
            for _ in range(min(len(self._released), _MOST_RELEASED)):
                member, number = self._released.popleft()
                released.setdefault(str(member), []).append(number)
        return released

    def _next(self, key: int) -> Received:
        while True:
            while not self._heard:
                heard = self._wire.hear()
                if heard is None:
                    self.broken = True
                    raise DataError(_ENDED)
                self._heard.extend(heard)
            received = self._heard.popleft()
            for number, fd in zip(received.message.get("arenas", ()), received.fds, strict=True):
                self._memory[number] = arena.mapped(fd)
            for number in received.message.get("forget", ()):
                self._memory.pop(number, None)
            if received.message["stream"] != key:
                continue  # of a stream that was left
            if received.message["say"] == "failed":
                raise msgspec.convert(received.message["failure"], Failure).error(received.data)
            return received


class Lines:
    """Lines to one service: those that nobody uses are kept for the next who needs one."""

    def __init__(self, connect: Callable[[], Wire]) -> None:
        self._connect = connect
        self._idle: list[Line] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()  # protects `_idle`
        weakref.finalize(self, _close_all, self._idle)

    def rows(self, asked: Message) -> Iterator[Delivered]:
        line = self._take()
        try:
            yield from line.rows(asked)
        finally:
            self._give_back(line)

    def ask(self, dataset: str, what: str) -> Any:
        line = self._take()
        try:
            return line.ask(dataset, what)
        finally:
            self._give_back(line)

    def close(self) -> None:
        with self._lock:
            _close_all(self._idle)

    def _take(self) -> Line:
        with self._lock:
            if self._owner != os.getpid():
                # A fork: the lines are those of the process it was forked from.
                _close_all(self._idle)
                self._owner = os.getpid()
            return self._idle.pop() if self._idle else Line(self._connect())

    def _give_back(self, line: Line) -> None:
        if line.broken:
            line.close()
            return
        with self._lock:
            self._idle.append(line)


def _takes(end: socket.socket) -> bool:
    """Whether a short message can be sent without waiting."""
    if end.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(end, select.POLLOUT)
    return bool(poll.poll(0))


def _close_all(lines: list[Line]) -> None:
    while lines:
        lines.pop().close()


class RemoteFeeds:
    """The rows of a dataset that the service at an address serves: for one member of a group."""

    def __init__(self, address: str, dataset: str, member: int = 0, members: int = 1, shared: bool = False) -> None:
        """`shared`: every member reads all rows, and must not write to them; else each takes rows of its own."""
        self._address = address
        self._dataset = dataset
        self._asked = {"dataset": dataset, "member": member, "members": members, "shared": shared}
        self._lines = Lines(self._connected)

    def __reduce__(self) -> tuple[Any, ...]:
        asked = self._asked  # in another process it has lines of its own
        return type(self), (self._address, self._dataset, asked["member"], asked["members"], asked["shared"])

    def open(self, epoch: int, unit: int, offset: int) -> Iterator[Delivered]:
        return self._lines.rows({**self._asked, "epoch": epoch, "unit": unit, "offset": offset})

    def fingerprint(self) -> str:
        return str(self._lines.ask(self._dataset, "fingerprint"))

    def num_rows(self) -> int | None:
        number: int | None = self._lines.ask(self._dataset, "num_rows")
        return number

    def schema(self) -> Schema | None:
        schema: Schema | None = self._lines.ask(self._dataset, "schema")
        return schema

    def mixing(self) -> Mixing:
        mixing: Mixing = self._lines.ask(self._dataset, "mixing")
        return mixing

    def stats(self) -> str:
        return str(self.seen())

    def seen(self) -> StreamStats:
        """The statistics of the dataset, over all members and epochs."""
        seen: StreamStats = self._lines.ask(self._dataset, "stats")
        return seen

    def close(self) -> None:
        self._lines.close()

    def _connected(self) -> Wire:
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect("\0" + self._address[1:] if self._address.startswith("@") else self._address)
        except OSError as error:
            end.close()
            raise DataError(
                f"the service that gives the rows of {self._dataset!r} cannot be reached: {error}"
            ) from error
        return Wire(end)
