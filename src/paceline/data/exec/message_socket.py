"""A socket between two processes for messages, with the descriptors of the arenas that they name."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import selectors
import socket
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from paceline._core.codec import FrameReader, encode_frame
from paceline.data.exec.arena import PooledArena, map_arena
from paceline.data.exec.messages import Message, ServiceMessage

_RECEIVE = 1 << 18
_ROOM_FOR_FDS = socket.CMSG_SPACE(64 * 4)
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class MessageSocket:
    """One end. `send_message` never waits for the other end on a non-blocking socket: it queues what the socket does
    not accept, and `flush` continues."""

    def __init__(self, end: socket.socket, accepted: Any) -> None:
        """`accepted` is the union of the messages that may arrive."""
        self.sock = end
        self.memory: dict[int, mmap.mmap] = {}
        """The arenas that arrived, mapped."""
        self.waiting: deque[Any] = deque()
        """Messages that arrived and were not taken."""
        self._decode = msgspec.msgpack.Decoder(accepted).decode
        self._frames = FrameReader()
        self._fds: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    def send_message(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """The caller keeps the descriptors: they are duplicated."""
        framed = memoryview(encode_frame(msgspec.msgpack.encode(message)))
        self._unsent.append((framed, tuple(os.dup(fd) for fd in fds)))
        self.flush()

    def flush(self) -> None:
        """Raises ConnectionError if the other end is gone."""
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                sent = socket.send_fds(self.sock, [data], fds) if fds else self.sock.send(data)
            except BlockingIOError:
                return
            for fd in fds:
                os.close(fd)
            if sent < len(data):
                self._unsent[0] = data[sent:], ()
            else:
                self._unsent.popleft()

    def receive_messages(self, *, wait: bool = True) -> int | None:
        """Add what has arrived to `waiting`; return how many bytes, or None once the other end is gone.

        Bytes, because a part of a message may be all that has arrived so far. `wait=False` never blocks.
        """
        flags = _FLAGS if wait else _FLAGS | socket.MSG_DONTWAIT
        try:
            # Not `socket.recv_fds`: it accepts flags and ignores them.
            data, extra, _, _ = self.sock.recvmsg(_RECEIVE, _ROOM_FOR_FDS, flags)
        except BlockingIOError:
            return 0
        except ConnectionError:
            return None
        for level, kind, content in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds.extend(fds)
        self.waiting.extend(map(self._decode, self._frames.feed(data)))
        return len(data) or None

    def take_message(self) -> Any:
        """Wait for the next message; None once the other end is gone."""
        while not self.waiting:
            if self.receive_messages() is None:
                return None
        message = self.waiting.popleft()
        for number in message.arenas:
            if (mapped := map_arena(self._fds.popleft())) is not None:
                self.memory[number] = mapped
        for number in message.forget:
            self.memory.pop(number, None)
        return message

    def close(self) -> None:
        for _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._unsent.clear()
        while self._fds:
            os.close(self._fds.popleft())
        with contextlib.suppress(OSError):
            self.sock.close()


class ServiceSocket(MessageSocket):
    """The service's end: it never blocks, and knows which arenas the other end has mapped."""

    def __init__(self, end: socket.socket, accepted: Any, selector: selectors.BaseSelector) -> None:
        super().__init__(end, accepted)
        end.setblocking(False)
        self._selector = selector
        self._mapped: set[int] = set()
        self._to_forget: list[int] = []
        self._events = selectors.EVENT_READ
        selector.register(end, self._events, self)

    @property
    def is_open(self) -> bool:
        return self.sock.fileno() >= 0

    def post(self, message: ServiceMessage, arena: PooledArena | None = None) -> None:
        """Send or queue a message that names an arena. Does nothing if the other end is gone."""
        if not self.is_open:
            return
        fds: tuple[int, ...] = ()
        if arena is not None and arena.number not in self._mapped:
            self._mapped.add(arena.number)
            message.arenas, fds = [arena.number], (arena.fd,)
        message.forget, self._to_forget = self._to_forget, []
        with contextlib.suppress(ConnectionError):  # handled when the socket is read
            self.send_message(message, fds)
        self._watch()

    def exchange(self, mask: int) -> Iterator[Any]:
        """Send what is possible now, and yield what has arrived. Disconnects once the other end is gone.

        Does nothing if it was disconnected after the selector returned it.
        """
        if not self.is_open:
            return
        if mask & selectors.EVENT_READ and self.receive_messages() is None:
            self.disconnect()
            return
        while self.waiting:
            yield self.waiting.popleft()
        with contextlib.suppress(ConnectionError):  # as in `post`
            self.flush()
        self._watch()

    def take_descriptor(self) -> int | None:
        """The descriptor that came with a message; None if this process had no room for it. The caller closes it."""
        return self._fds.popleft() if self._fds else None

    def take_rest(self) -> Iterator[Any]:
        """Yield all that a process sent before it died, and disconnect. A child of it may keep the other end open."""
        while self.is_open and self.receive_messages():
            pass
        while self.waiting:
            yield self.waiting.popleft()
        self.disconnect()

    def forget_arenas(self, freed: Collection[int]) -> None:
        """Sent with the next message: until then, a truncated mapping takes no memory."""
        self._to_forget += self._mapped.intersection(freed)
        self._mapped.difference_update(freed)

    def disconnect(self) -> None:
        if self.is_open:
            self._selector.unregister(self.sock)
            self.close()

    def _watch(self) -> None:
        """Wait for room to send as long as something is unsent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if events != self._events:
            self._events = events
            self._selector.modify(self.sock, events, self)
