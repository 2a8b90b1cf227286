"""The line from a worker to the zygote that it was forked from, where there is one.

A worker that has a run of its own asks for a zygote by it: one that is forked from its own, and has imported all that
this has.
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
from paceline._core.codec import FrameReader, frame

line: socket.socket | None = None


class Sibling:
    """A process that the zygote of this worker has forked, with as much of `subprocess.Popen` as a zygote needs."""

    def __init__(self, pid: int, watch: int) -> None:
        self.pid = pid
        self._watch = watch

    def poll(self) -> int | None:
        poll = select.poll()
        poll.register(self._watch, select.POLLIN)
        return 0 if poll.poll(0) else None

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._watch, signum)

    def wait(self, timeout: float | None = None) -> int:
        poll = select.poll()
        poll.register(self._watch, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("zygote", timeout or 0.0)
        os.close(self._watch)
        return 0


def sibling() -> tuple[Sibling, socket.socket] | None:
    """A zygote for this process, and the socket by which it is told what to do; None where there is none to be had."""
    if line is None:
        return None
    ours, theirs = socket.socketpair()
    request = {"do": "heir", "modules": [], "path": sys.path, "driver": os.getpid()}
    try:
        with theirs:
            socket.send_fds(line, [frame(json.dumps(request).encode())], [theirs.fileno()])
        frames = FrameReader()
        while data := ours.recv(4096):
            for payload in frames.feed(data):
                pid = int(json.loads(payload)["ready"])
                watch = system.exit_watch(pid)
                if watch is not None:
                    return Sibling(pid, watch), ours
    except ConnectionError:
        pass  # The zygote is gone, and this worker is about to be.
    ours.close()
    return None
