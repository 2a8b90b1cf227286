"""A line between two processes: JSON messages, each with bytes and descriptors to go along where it has any."""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections import deque
from typing import Any

import msgspec

from paceline._core.codec import FrameReader, frame

_RECEIVE = 1 << 18
_ROOM_FOR_FDS = socket.CMSG_SPACE(64 * 4)
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

Message = dict[str, Any]


class Received(msgspec.Struct, frozen=True):
    message: Message
    data: bytes
    fds: tuple[int, ...]


class Wire:
    """One end. `say` may be called while the other end does not listen: with a socket that does not block, what it
    does not take is kept, and `flush` goes on."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._frames = FrameReader()
        self._fds: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def say(self, message: Message, data: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """The descriptors are only lent: they are duplicated where they have to wait."""
        if fds:
            message = {**message, "fds": len(fds)}
        framed = memoryview(frame(msgspec.json.encode(message) + b"\n" + data))
        self._unsent.append((framed, tuple(os.dup(fd) for fd in fds)))
        self.flush()

    def flush(self) -> None:
        """ConnectionError where the other end is gone."""
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                sent = socket.send_fds(self.end, [data], fds) if fds else self.end.send(data)
            except BlockingIOError:
                return
            for fd in fds:
                os.close(fd)
            if sent < len(data):
                self._unsent[0] = data[sent:], ()
            else:
                self._unsent.popleft()

    def hear(self, *, wait: bool = True) -> list[Received] | None:
        """What has come; None once the other end is gone. Waits where the socket does, unless told not to."""
        flags = _FLAGS if wait else _FLAGS | socket.MSG_DONTWAIT
        try:
            # Not `socket.recv_fds`, which takes flags and does not use them.
            data, extra, _, _ = self.end.recvmsg(_RECEIVE, _ROOM_FOR_FDS, flags)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        for level, kind, content in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds.extend(fds)
        return [self._received(payload) for payload in self._frames.feed(data)] if data else None

    def close(self) -> None:
        for _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._unsent.clear()
        while self._fds:
            os.close(self._fds.popleft())
        with contextlib.suppress(OSError):
            self.end.close()

    def _received(self, payload: bytes) -> Received:
        head, _, data = payload.partition(b"\n")
        message: Message = msgspec.json.decode(head)
        return Received(message, data, tuple(self._fds.popleft() for _ in range(message.pop("fds", 0))))
