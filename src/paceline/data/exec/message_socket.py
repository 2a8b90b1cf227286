"""A socket between two processes for JSON messages, each with optional bytes and file descriptors."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from paceline._core.codec import FrameReader, encode_frame
from paceline.data.block import Block
from paceline.data.exec import arena

_RECEIVE = 1 << 18
_ROOM_FOR_FDS = socket.CMSG_SPACE(64 * 4)
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

Message = dict[str, Any]


class ReceivedMessage(msgspec.Struct, frozen=True):
    message: Message
    data: bytes
    fds: tuple[int, ...]


class MessageSocket:
    """One end. `send_message` never waits for the other end on a non-blocking socket: it queues what the socket does
    not accept, and `flush` continues."""

    def __init__(self, end: socket.socket) -> None:
        self.sock = end
        self._frames = FrameReader()
        self._fds: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send_message(self, message: Message, data: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """The caller keeps the descriptors: they are duplicated if the message has to be queued."""
        if fds:
            message = {**message, "fds": len(fds)}
        framed = memoryview(encode_frame(msgspec.json.encode(message) + b"\n" + data))
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

    def receive_messages(self, *, wait: bool = True) -> list[ReceivedMessage] | None:
        """Return what has arrived, or None once the other end is gone. `wait=False` never blocks."""
        flags = _FLAGS if wait else _FLAGS | socket.MSG_DONTWAIT
        try:
            # Not `socket.recv_fds`: it accepts flags and ignores them.
            data, extra, _, _ = self.sock.recvmsg(_RECEIVE, _ROOM_FOR_FDS, flags)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        for level, kind, content in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds.extend(fds)
        return [self._decode_message(payload) for payload in self._frames.feed(data)] if data else None

    def close(self) -> None:
        for _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._unsent.clear()
        while self._fds:
            os.close(self._fds.popleft())
        with contextlib.suppress(OSError):
            self.sock.close()

    def _decode_message(self, payload: bytes) -> ReceivedMessage:
        head, _, data = payload.partition(b"\n")
        message: Message = msgspec.json.decode(head)
        return ReceivedMessage(message, data, tuple(self._fds.popleft() for _ in range(message.pop("fds", 0))))


class MessageInbox:
    """Takes messages one at a time, and keeps the arenas that came with them mapped."""

    def __init__(self, wire: MessageSocket) -> None:
        self.wire = wire
        self.waiting: deque[ReceivedMessage] = deque()
        self.memory: dict[int, mmap.mmap] = {}

    def take_next(self) -> ReceivedMessage | None:
        """Wait for the next message; None once the other end is gone."""
        while not self.waiting:
            messages = self.wire.receive_messages()
            if messages is None:
                return None
            self.waiting.extend(messages)
        received = self.waiting.popleft()
        for number, fd in zip(received.message.get("arenas", ()), received.fds, strict=True):
            self.memory[number] = arena.map_arena(fd)
        for number in received.message.get("forget", ()):
            self.memory.pop(number, None)
        return received

    def read_block(self, message: Message, released: Callable[[], None], *, writable: bool) -> Block:
        """Return the block that a message announces; `released` is called when the last view of it is gone."""
        layout = msgspec.convert(message["layout"], arena.BlockLayout)
        return arena.read_block(layout, self.memory[message["arena"]], released, writable=writable)
