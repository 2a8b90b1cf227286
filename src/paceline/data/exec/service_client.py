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
import msgspec

from paceline._core.errors import DataError
from paceline.data.block import Schema
from paceline.data.exec.failure import DataFailure
from paceline.data.exec.message_socket import Message, MessageInbox, MessageSocket, ReceivedMessage
from paceline.data.exec.stats import StreamStats
from paceline.data.order.sharding import RowDelivery
from paceline.data.order.shuffle import Mixing

_SERVICE_ENDED = "the data service has ended"
_MAX_RELEASED = 200
"""Per message."""


class ServiceConnection:
    """A connection to a service, for one stream at a time. Mapped arenas are kept for the next stream."""

    def __init__(self, wire: MessageSocket) -> None:
        self._wire = wire
        self._inbox = MessageInbox(wire)
        self._released: deque[tuple[int, int]] = deque()
        self._keys = count(1)
        self._owner = os.getpid()
        self.is_broken = False
        self._is_idle = True
        """No stream is open, so no other message would carry the released blocks."""
        self._sending = threading.Lock()  # held_blocks while a message is sent

    def stream_rows(self, request: Message) -> Iterator[RowDelivery]:
        """Yield the blocks of the stream that `request` describes, in order."""
        key = next(self._keys)
        held_blocks: set[int] = set()
        self._is_idle = False
        self._send({"say": "open", "stream": key, **request})
        try:
            opened = self._receive_next(key).message
            num, waited = 0, 0.0
            while True:
                began = time.perf_counter()
                received = self._receive_next(key)
                waited += time.perf_counter() - began
                if received.message["say"] == "end":
                    return
                yield self._map_block(received.message, opened, held_blocks)
                num += 1
                self._send({"say": "passed", "stream": key, "num": num, "waited": waited})
                waited = 0.0
        finally:
            self._leave_stream(key, held_blocks)

    def query(self, dataset: str, what: str) -> Any:
        key = next(self._keys)
        self._send({"say": "ask", "stream": key, "dataset": dataset, "what": what})
        return cloudpickle.loads(self._receive_next(key).data)

    def close(self) -> None:
        self._wire.close()

    def _map_block(self, message: Message, opened: Message, held_blocks: set[int]) -> RowDelivery:
        member, number = opened["member"], message["block"]
        held_blocks.add(number)

        def mark_released() -> None:
            held_blocks.discard(number)
            self._released.append((member, number))
            if self._is_idle:
                self._send_released()

        block = self._inbox.read_block(message, mark_released, writable=opened["writable"])
        return RowDelivery(message["unit"], message["offset"], block)

    def _leave_stream(self, key: int, held_blocks: set[int]) -> None:
        try:
            # Before the released blocks are sent: a block released meanwhile is reported twice rather than never.
            keeps = list(held_blocks)
            self._send({"say": "leave", "stream": key, "keeps": keeps})
        except DataError:
            pass  # the service is gone, so there is nothing to leave
        self._is_idle = True
        self._send_released()

    def _send(self, message: Message) -> None:
        with self._sending:
            if released := self._drain_released():
                message["released"] = released
            try:
                self._wire.send_message(message)
            except OSError as error:
                self.is_broken = True
                raise DataError(_SERVICE_ENDED) from error

    def _send_released(self) -> None:
        """May run at any time, in any thread. Never waits, and a forked child sends nothing on its parent's behalf."""
        while self._released and self._owner == os.getpid() and self._sending.acquire(blocking=False):
            try:
                if not _can_send(self._wire.sock):
                    return
                if released := self._drain_released():
                    self._wire.send_message({"say": "released", "released": released})
            except OSError:
                return  # the service is gone, or the connection is closed
            finally:
                self._sending.release()

    def _drain_released(self) -> dict[str, list[int]]:
        released: dict[str, list[int]] = {}
        with contextlib.suppress(IndexError):  # another thread may have taken the rest
            for _ in range(min(len(self._released), _MAX_RELEASED)):
                member, number = self._released.popleft()
                released.setdefault(str(member), []).append(number)
        return released

    def _receive_next(self, key: int) -> ReceivedMessage:
        while True:
            received = self._inbox.take_next()
            if received is None:
                self.is_broken = True
                raise DataError(_SERVICE_ENDED)
            if received.message["stream"] != key:
                continue  # belongs to a stream that was left
            if received.message["say"] == "failed":
                raise msgspec.convert(received.message["failure"], DataFailure).to_exception(received.data)
            return received


class ServiceConnectionPool:
    """Connections to one service; idle ones are kept for reuse."""

    def __init__(self, connect: Callable[[], MessageSocket]) -> None:
        self._connect = connect
        self._idle: list[ServiceConnection] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()  # protects `_idle`
        weakref.finalize(self, _close_all, self._idle)

    def stream_rows(self, request: Message) -> Iterator[RowDelivery]:
        with self._borrow() as connection:
            yield from connection.stream_rows(request)

    def query(self, dataset: str, what: str) -> Any:
        with self._borrow() as connection:
            return connection.query(dataset, what)

    def close(self) -> None:
        with self._lock:
            _close_all(self._idle)

    @contextlib.contextmanager
    def _borrow(self) -> Iterator[ServiceConnection]:
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
        self._request = {"dataset": dataset, "member": member, "members": members, "shared": shared}
        self._connections = ServiceConnectionPool(self._connect)

    def __reduce__(self) -> tuple[Any, ...]:
        request = self._request  # a copy in another process opens its own connections
        return type(self), (self._address, self._dataset, request["member"], request["members"], request["shared"])

    def open(self, epoch: int, unit: int, offset: int) -> Iterator[RowDelivery]:
        return self._connections.stream_rows({**self._request, "epoch": epoch, "unit": unit, "offset": offset})

    def _fetch_fact(self, name: str) -> Any:
        return self._connections.query(self._dataset, name)

    def close(self) -> None:
        self._connections.close()

    def _connect(self) -> MessageSocket:
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect("\0" + self._address[1:] if self._address.startswith("@") else self._address)
        except OSError as error:
            end.close()
            raise DataError(f"cannot reach the data service of dataset {self._dataset!r}: {error}") from error
        return MessageSocket(end)
