"""The engine that runs workers on a Ray cluster: one actor for each, in one placement group.

This is the side that the controller sees. A `Conversation` on a thread of its own speaks with the actors; what it hears
goes into a queue that `wait` takes from.
"""

from __future__ import annotations

import secrets
import select
import socket
from collections import deque
from collections.abc import Callable

import msgspec

from paceline._core.system import Condition
from paceline._engine.base import Group, Needs
from paceline._engine.messages import FromWorker, ToWorker, WorkersStopped
from paceline._engine.ray.connect import connected
from paceline._engine.ray.conversation import Conversation
from paceline._engine.ray.crew import Crew
from paceline._engine.ray.escort import Escort
from paceline._engine.ray.look import looked
from paceline._engine.ray.placement import Wanted
from paceline._engine.ray.room import capacity

_ASK_S = 2.0

Say = Callable[[str], None]


class RayEngine:
    def __init__(
        self,
        wanted: Wanted,
        say: Say = lambda _: None,
        address: str | None = None,
        *,
        escort: Escort | None = None,
        least: int | None = None,
        most: int | None = None,
        moves: bool = False,
    ) -> None:
        """`say` is told what is waited for; `address` that of the cluster, where Ray is not initialised yet.

        `least`: the fewest workers that the run can do with, where that is fewer than it may have. Then a group that
        there is no room for any more has failed; else it waits. `most`: it has no more, though there be room.
        `moves`: see `Conversation`.
        """
        self._ray = connected(address)
        self._wanted = wanted
        self._token = secrets.token_hex(16)
        self._heard: deque[FromWorker | WorkersStopped] = deque()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._closed = False
        self._news = select.poll()  # `select.select` knows no descriptors above 1,023
        self._news.register(self._wake_r, select.POLLIN)
        self._running = False
        self._least = least
        self._most = most
        self._num_places = 0
        room = self._room if least is not None else None
        crew = Crew(self._ray, wanted, escort if escort is not None else Escort(), self._token, say, room)
        self._conversation = Conversation(self._ray, crew, self._hear, say, moves=moves)

    def capacity(self, needs: Needs, least: int, most: int) -> int:
        """By what each worker asks for in whole, of which `needs` are a part."""
        try:
            cluster, held = self._conversation.ask(lambda: (looked(), self._conversation.crew.held()), _ASK_S)
        except (self._ray.exceptions.RayError, TimeoutError):
            return self._num_places  # A head that does not answer takes no place away.
        self._num_places = capacity(self._wanted, cluster, held, least, min(most, self._most or most))
        return self._num_places

    @property
    def waits(self) -> bool:
        """For places: no worker has been started."""
        return self._conversation.waits

    def places(self) -> list[str]:
        """The nodes that workers have places on, for each place. May ask the cluster. On any thread."""
        crew = self._conversation.crew
        return crew.places() or list(crew.held().elements())

    def start(self, group: Group) -> None:
        assert not self._running, "the workers of the last attempt have not been stopped"
        self._running = True
        self._conversation.start(group)

    def send(self, rank: int, message: ToWorker) -> None:
        self._conversation.send(rank, message)

    def stop(self, *, kill: bool) -> None:
        self._conversation.stop(kill)

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        if not self._heard:
            self._news.poll(None if timeout_s is None else timeout_s * 1000)
        try:
            while self._wake_r.recv(4096):
                pass
        except BlockingIOError:
            pass
        said: list[FromWorker | WorkersStopped] = []
        while self._heard:
            message = self._heard.popleft()
            if isinstance(message, WorkersStopped):
                self._running = False
            said.append(message)
        return said

    def condition(self, rank: int) -> Condition | None:
        seat = self._conversation.seat(rank)
        if seat is None or seat.lost:
            return None
        try:
            found = self._ray.get(seat.actor.condition.remote(self._token), timeout=_ASK_S)
        except (self._ray.exceptions.RayError, TimeoutError):
            return None  # What cannot be asked is not known; a lost actor is told of by its stream.
        return None if found is None else msgspec.json.decode(found, type=Condition)

    def pid(self, rank: int) -> int:
        """The process of a rank, on its own machine; 0 where it is not known yet."""
        seat = self._conversation.seat(rank)
        return seat.pid if seat is not None else 0

    def signal(self, rank: int, signum: int) -> None:
        """Send a signal to the process of a rank: for tests."""
        seat = self._conversation.seat(rank)
        if seat is not None:
            self._ray.get(seat.actor.signal.remote(self._token, signum), timeout=_ASK_S)

    def wake(self) -> None:
        try:
            self._wake_w.send(b"\0")
        except BlockingIOError:
            pass  # It is full of wakes already.
        except OSError:
            if not self._closed:
                raise
            # Nobody waits any more. Another thread cannot know that: it asks whenever it likes.

    def close(self) -> None:
        self._conversation.close()
        self._closed = True
        self._wake_r.close()
        self._wake_w.close()

    def _hear(self, said: FromWorker | WorkersStopped) -> None:
        self._heard.append(said)
        self.wake()

    def _room(self, most: int) -> int:
        return capacity(self._wanted, looked(), self._conversation.crew.held(), self._least or most, most)
