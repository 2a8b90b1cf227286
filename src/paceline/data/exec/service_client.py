"""The consumer side: a connection to a data service, and the feed that an iterator in a worker reads from.

There is no thread here: announced blocks are read when the next rows are requested. A passed block is released when
the last view of it is gone.
"""

from __future__ import annotations

import contextlib
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

from paceline._core.errors import DataError
from paceline.data.block import Schema
from paceline.data.exec import messages as m
from paceline.data.exec.message_socket import MessageSocket
from paceline.data.exec.packed_blocks import read_shared
from paceline.data.exec.stats import StreamStats
from paceline.data.order.sharding import RowDelivery
from paceline.data.order.shuffle import Mixing

_SERVICE_ENDED = "the data service has ended"
_MAX_RELEASED = 200
"""Per message."""


class ServiceConnection(MessageSocket):
    """A connection to a service, for one stream at a time. Mapped arenas are kept for the next stream."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end, m.ToMember)
        self._released: deque[tuple[int, int]] = deque()
        self._keys = count(1)
        self._owner = os.getpid()
        self.is_broken = False
        self._is_idle = True
        """No stream is open, so no other message would carry the released blocks."""
        self._sending = threading.Lock()  # held while a message is sent

    def stream_rows(self, request: m.OpenStream) -> Iterator[RowDelivery]:
        """Yield the blocks of the stream that `request` describes, in order."""
        key = request.stream = next(self._keys)
        unreleased: set[int] = set()
        self._is_idle = False
        self._send(request)
        try:
            opened = self._receive_next(key)
            num_passed, waited_s = 0, 0.0
            while True:
                began = time.perf_counter()
                message = self._receive_next(key)
                waited_s += time.perf_counter() - began
                if not isinstance(message, m.BlockAnnounced):
                    return
                yield self._map_block(message, opened, unreleased)
                num_passed += 1
                self._send(m.BlockPassed(key, num_passed, waited_s))
                waited_s = 0.0
        finally:
            self._leave_stream(key, unreleased)

    def query(self, dataset: str, fact: str) -> Any:
        key = next(self._keys)
        self._send(m.QueryDataset(key, dataset, fact))
        return cloudpickle.loads(self._receive_next(key).pickled)

    def _map_block(self, message: m.BlockAnnounced, opened: m.StreamOpened, unreleased: set[int]) -> RowDelivery:
        unreleased.add(message.block)

        def mark_released() -> None:
            unreleased.discard(message.block)
            self._released.append((opened.member, message.block))
            if self._is_idle:
                self._send_released()

        block = read_shared(message.layout, self.memory[message.arena], mark_released, writable=opened.is_writable)
        return RowDelivery(message.unit, message.offset, block)

    def _leave_stream(self, key: int, unreleased: set[int]) -> None:
        with contextlib.suppress(DataError):  # the service is gone, so there is nothing to leave
            # Before the released blocks are sent: a block released meanwhile is reported twice rather than never.
            self._send(m.LeaveStream(key, list(unreleased)))
        self._is_idle = True
        self._send_released()

    def _send(self, message: m.MemberMessage) -> None:
        with self._sending:
            message.released = self._drain_released()
            try:
                self.send_message(message)
            except OSError as error:
                self.is_broken = True
                raise DataError(_SERVICE_ENDED) from error

    def _send_released(self) -> None:
        """May run at any time, in any thread. Never waits, and a forked child sends nothing on its parent's behalf."""
        while self._released and self._owner == os.getpid() and self._sending.acquire(blocking=False):
            try:
                if not _can_send(self.sock):
                    return
                if released := self._drain_released():
                    self.send_message(m.BlocksReleased(released=released))
            except OSError:
                return  # the service is gone, or the connection is closed
            finally:
                self._sending.release()

    def _drain_released(self) -> dict[int, list[int]]:
        released: dict[int, list[int]] = {}
        with contextlib.suppress(IndexError):  # another thread may have taken the rest
            for _ in range(min(len(self._released), _MAX_RELEASED)):
                member, number = self._released.popleft()
                released.setdefault(member, []).append(number)
        return released

    def _receive_next(self, key: int) -> Any:
        while (message := self.take_message()) is not None:
            if message.stream != key:
                continue  # belongs to a stream that was left
            if isinstance(message, m.StreamFailed):
                raise message.failure.to_exception()
            return message
        self.is_broken = True
        raise DataError(_SERVICE_ENDED)


class ServiceConnectionPool:
    """Connections to one service; idle ones are kept for reuse."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._idle: list[ServiceConnection] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()  # protects `_idle`
        weakref.finalize(self, _close_all, self._idle)

    def close(self) -> None:
        with self._lock:
            _close_all(self._idle)

    @contextlib.contextmanager
    def borrow(self) -> Iterator[ServiceConnection]:
        with self._lock:
            if self._owner != os.getpid():
                # A forked child: the connections belong to the parent.
                _close_all(self._idle)
                self._owner = os.getpid()
            connection = self._idle.pop() if self._idle else ServiceConnection(self._connect())
        try:
            yield connection
        finally:
            if connection.is_broken:
                connection.close()
            else:
                with self._lock:
                    self._idle.append(connection)


def _can_send(end: socket.socket) -> bool:
    """Whether a short message can be sent without waiting."""
    if end.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(end, select.POLLOUT)
    return bool(poll.poll(0))


def _close_all(connections: list[ServiceConnection]) -> None:
    while connections:
        connections.pop().close()


class ServedFacts:
    """What feeds know about a dataset from the process that serves it."""

    def _fetch_fact(self, name: str) -> Any:
        raise NotImplementedError

    def fingerprint(self) -> str:
        return str(self._fetch_fact("fingerprint"))

    def num_rows(self) -> int | None:
        number: int | None = self._fetch_fact("num_rows")
        return number

    def schema(self) -> Schema | None:
        schema: Schema | None = self._fetch_fact("schema")
        return schema

    def mixing(self) -> Mixing:
        mixing: Mixing = self._fetch_fact("mixing")
        return mixing

    def stats(self) -> str:
        return str(self.stream_stats())

    def stream_stats(self) -> StreamStats:
        """The statistics of the dataset, over all consumers and epochs."""
        stats: StreamStats = self._fetch_fact("stats")
        return stats


class RemoteFeeds(ServedFacts):
    """The rows of a dataset served at an address, for one member of a group."""

    def __init__(self, address: str, dataset: str, member: int = 0, members: int = 1, shared: bool = False) -> None:
        """`shared`: every member reads all rows and must not write to them; else each takes its own rows."""
        self._address = address
        self._dataset = dataset
        self._group = member, members, shared
        self._connections = ServiceConnectionPool(self._connect)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process opens its own connections.
        return type(self), (self._address, self._dataset, *self._group)

    def open(self, epoch: int, unit: int, offset: int) -> Iterator[RowDelivery]:
        with self._connections.borrow() as connection:
            request = m.OpenStream(0, unit, offset, "", self._dataset, epoch, *self._group)
            yield from connection.stream_rows(request)

    def _fetch_fact(self, name: str) -> Any:
        with self._connections.borrow() as connection:
            return connection.query(self._dataset, name)

    def close(self) -> None:
        self._connections.close()

    def _connect(self) -> socket.socket:
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect("\0" + self._address[1:] if self._address.startswith("@") else self._address)
        except OSError as error:
            end.close()
            raise DataError(f"cannot reach the data service of dataset {self._dataset!r}: {error}") from error
        return end
