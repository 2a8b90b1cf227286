"""The connection from a worker to the zygote that it was forked from, if there is one.

A worker that starts a run of its own uses it to request a zygote: a fork of the parent zygote, with everything that one
has imported.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys

from paceline._core import system
from paceline._core.codec import FrameReader, encode_frame

zygote_socket: socket.socket | None = None


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


def fork_zygote() -> tuple[ForkedZygote, socket.socket] | None:
    """Return a zygote for this process and the socket that controls it, or None if there is no parent zygote."""
    if zygote_socket is None:
        return None
    ours, theirs = socket.socketpair()
    request = {"do": "successor", "modules": [], "path": sys.path, "driver": os.getpid()}
    try:
        with theirs:
            socket.send_fds(zygote_socket, [encode_frame(json.dumps(request).encode())], [theirs.fileno()])
        frames = FrameReader()
        while data := ours.recv(4096):
            for payload in frames.feed(data):
                pid = int(json.loads(payload)["ready"])
                watch = system.open_exit_watch(pid)
                if watch is not None:
                    return ForkedZygote(pid, watch), ours
    except ConnectionError:
        pass  # The zygote is gone, and this worker is about to be.
    ours.close()
    return None
