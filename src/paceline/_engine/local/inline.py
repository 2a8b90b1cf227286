"""A worker without a process: the function runs in the driver's own thread, where a debugger reaches it.

The controller moves to a separate thread and talks to this worker like to any other.
"""

import os
import socket
import time
from queue import SimpleQueue

from paceline._engine.local.launchers import WORKER_MODULE, ProcessExit


class InlineLauncher:
    def __init__(self) -> None:
        self._requests: SimpleQueue[socket.socket | None] = SimpleQueue()
        self._exits: list[ProcessExit] = []
        self._news_r, self._news_w = os.pipe()

    def launch(self, token: int, env: dict[str, str], fds: tuple[int, int, int], module: str = WORKER_MODULE) -> None:
        self._requests.put(socket.socket(fileno=os.dup(fds[0])))

    def wait_for_worker(self) -> socket.socket | None:
        """Return the next worker's socket, or None once there are no more. Blocks; called in the user's thread."""
        return self._requests.get()

    def report_exit(self, code: int) -> None:
        """Report that the function has ended. Called in the user's thread."""
        self._exits.append(ProcessExit(0, code, time.time()))
        os.write(self._news_w, b"\0")

    def kill(self, token: int) -> None:
        """Do nothing: a thread cannot be killed, it ends when its function returns."""

    def preload_ahead(self, modules: tuple[str, ...]) -> None:
        """Do nothing: this process imports what it needs by itself."""

    def take_exits(self) -> list[ProcessExit]:
        exits, self._exits = self._exits, []
        if exits:
            os.read(self._news_r, len(exits))
        return exits

    def watched_fds(self) -> list[int]:
        return [self._news_r]

    def pid(self, token: int) -> int:
        return os.getpid()

    def close(self) -> None:
        self._requests.put(None)
        os.close(self._news_r)
        os.close(self._news_w)
