"""The channel between a driver and its zygote: JSON requests and answers, with file descriptors.

A worker keeps the channel to the zygote that it was forked from. If it starts a run of its own, it requests a zygote
over it: a fork of the parent zygote, with everything that one has imported.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from typing import Any

from paceline._core import system
from paceline._core.codec import FrameReader, encode_frame


class Channel:
    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.fds: deque[int] = deque()
        """Received and not yet used."""
        self._frames = FrameReader()

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        data = memoryview(encode_frame(json.dumps(message).encode()))
        with contextlib.suppress(ConnectionError):  # The loss of a zygote shows up as the exit of its workers.
            sent = socket.send_fds(self.socket, [data], fds) if fds else 0
            self.socket.sendall(data[sent:])

    def receive(self) -> list[dict[str, Any]] | None:
        """Receive once: return the messages that are complete, or None once the peer is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 64)
        except ConnectionError:
            return None
        self.fds.extend(fds)
        return [json.loads(payload) for payload in self._frames.feed(data)] if data else None

    def poll(self) -> int:
        """Return the poll events; 0 if `receive` would block."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return sum(events for _, events in poll.poll(0))

    def close(self) -> None:
        self.socket.close()


to_parent_zygote: Channel | None = None
"""In a worker that was forked from a zygote."""


class ForkedZygote:
    """A process forked by this worker's zygote, with the `subprocess.Popen` methods that a zygote needs."""

    def __init__(self, pid: int, watch: int) -> None:
        self.pid = pid
        self._exit_watch = watch
        self._exit_poll = select.poll()
        self._exit_poll.register(watch, select.POLLIN)

    def poll(self) -> int | None:
        return 0 if self._exit_poll.poll(0) else None

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._exit_watch, signum)

    def wait(self, timeout: float | None = None) -> int:
        if not self._exit_poll.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("zygote", timeout or 0.0)
        os.close(self._exit_watch)
        return 0


def fork_zygote() -> tuple[ForkedZygote, Channel] | None:
    """Return a zygote for this process and the channel to it, or None if there is no parent zygote."""
    if to_parent_zygote is None:
        return None
    ours, theirs = socket.socketpair()
    with theirs:
        request = {"do": "successor", "modules": [], "path": sys.path, "driver": os.getpid()}
        to_parent_zygote.send(request, (theirs.fileno(),))
    channel = Channel(ours)
    while (answers := channel.receive()) is not None:
        for answer in answers:
            if (watch := system.open_exit_watch(answer["ready"])) is not None:
                return ForkedZygote(answer["ready"], watch), channel
    channel.close()  # The zygote is gone, and this worker is about to be.
    return None
