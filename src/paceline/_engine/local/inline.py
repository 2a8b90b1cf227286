"""A worker that is no process: the function runs in the driver's own thread, where a debugger reaches it.

The controller moves to a thread of its own and talks to this worker as to any other.
"""

import os
import socket
import time
from queue import SimpleQueue

from paceline._engine.local.launch import WORKER, Exit


class InlineLauncher:
    def __init__(self) -> None:
        self._asked: SimpleQueue[socket.socket | None] = SimpleQueue()
        self._exits: list[Exit] = []
        self._news_r, self._news_w = os.pipe()

    def launch(self, token: int, env: dict[str, str], fds: tuple[int, int, int], module: str = WORKER) -> None:
        self._asked.put(socket.socket(fileno=os.dup(fds[0])))

    def asked(self) -> socket.socket | None:
        """The line of the next worker to be, waited for; None once there will be no more. In the user's thread."""
        return self._asked.get()

    def ended(self, code: int) -> None:
        """The function is over. In the user's thread."""
        self._exits.append(Exit(0, code, time.time()))
        os.write(self._news_w, b"\0")

    def kill(self, token: int) -> None:
        """A thread cannot be killed; it leaves when its function does."""

    def ripen(self, modules: tuple[str, ...]) -> None:
        """This process imports what it needs by itself."""

    def exits(self) -> list[Exit]:
        exits, self._exits = self._exits, []
        if exits:
            os.read(self._news_r, len(exits))
        return exits

    def watched(self) -> list[int]:
        return [self._news_r]

    def pid(self, token: int) -> int:
        return os.getpid()

    def close(self) -> None:
        self._asked.put(None)
        os.close(self._news_r)
        os.close(self._news_w)
