"""The engine that runs workers on a Ray cluster: one actor for each, in one placement group.

A thread of its own holds the conversation with the actors: it asks for places, starts workers, hears each actor's
stream. What is heard goes into a queue that `wait` takes from. The actors and their places stay from attempt to
attempt, as long as as many are needed and all are alive.
"""

from __future__ import annotations

import asyncio
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from paceline._core.system import Condition
from paceline._engine.base import Group, Needs
from paceline._engine.messages import (
    Exit,
    Failure,
    FailureKind,
    FromWorker,
    ToWorker,
    WorkerFailed,
    WorkerReturned,
    WorkersStopped,
    decode_from_worker,
    encode,
)
from paceline._engine.ray.connect import connected, gcs_address
from paceline._engine.ray.escort import Escort, Refused, heard
from paceline._engine.ray.placement import Wanted, order_of, seated
from paceline._engine.ray.shell import Said, Shell, Start, Where

_CLOSE_S = 5.0
"""How long the end of the actors is waited for when the engine closes."""
_ASK_S = 2.0
_LOOK_S = 0.2

Say = Callable[[str], None]


@dataclass(eq=False)
class Seat:
    """One actor, where it lies, and how its worker is doing."""

    actor: Any
    bundle: int
    where: Where
    rank: int = -1
    pid: int = 0
    log: Path = Path()
    spoken: bool = False
    """Its worker has said that it returned or failed; its end is no news."""
    stopped: bool = True
    lost: bool = False
    listening: asyncio.Task[None] | None = None


@dataclass
class Crew:
    """The actors of a group, and the placement group they are in."""

    group: Any
    seats: list[Seat] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return bool(self.seats) and not any(seat.lost for seat in self.seats)


class RayEngine:
    def __init__(
        self,
        wanted: Wanted,
        say: Say = lambda _: None,
        address: str | None = None,
        *,
        escort: Escort | None = None,
    ) -> None:
        """`say` is told what is waited for; `address` that of the cluster, where Ray is not initialised yet."""
        self._ray = connected(address)
        self._wanted = wanted
        self._say = say
        self._escort = escort if escort is not None else Escort()
        self._token = secrets.token_hex(16)
        self._heard: deque[FromWorker | WorkersStopped] = deque()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._crew: Crew | None = None
        self._attempt = 0
        self._starting: asyncio.Task[None] | None = None
        self._running = False
        self._stopping = False
        self._unsent: list[tuple[int, bytes]] = []
        """What was to be sent before the workers were started."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="paceline-ray", daemon=True)
        self._thread.start()

    # What the controller calls

    def capacity(self, needs: Needs, least: int, most: int) -> int:
        return most

    @property
    def waits(self) -> bool:
        """For places: no worker has been started."""
        return self._starting is not None

    def start(self, group: Group) -> None:
        assert not self._running, "the workers of the last attempt have not been stopped"
        self._attempt = group.attempt
        self._running, self._stopping = True, False
        self._unsent = []
        self._do(self._begin(group))

    def send(self, rank: int, message: ToWorker) -> None:
        payload = encode(message)
        self._loop.call_soon_threadsafe(self._send, rank, payload)

    def stop(self, *, kill: bool) -> None:
        self._loop.call_soon_threadsafe(self._stop, kill)

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        if not self._heard:
            select.select([self._wake_r], [], [], timeout_s)
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
        seat = self._seat(rank)
        if seat is None or seat.lost:
            return None
        try:
            found = self._ray.get(seat.actor.condition.remote(self._token), timeout=_ASK_S)
        except (self._ray.exceptions.RayError, TimeoutError):
            return None  # What cannot be asked is not known; a lost actor is told of by its stream.
        return None if found is None else msgspec.json.decode(found, type=Condition)

    def pid(self, rank: int) -> int:
        """The process of a rank, on its own machine; 0 where it is not known yet."""
        seat = self._seat(rank)
        return seat.pid if seat is not None else 0

    def signal(self, rank: int, signum: int) -> None:
        """Send a signal to the process of a rank: for tests."""
        seat = self._seat(rank)
        if seat is not None:
            self._ray.get(seat.actor.signal.remote(self._token, signum), timeout=_ASK_S)

    def wake(self) -> None:
        try:
            self._wake_w.send(b"\0")
        except BlockingIOError:
            pass  # It is full of wakes already.

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._wake_r.close()
        self._wake_w.close()

    # On the thread of the conversation

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        def begin() -> None:
            self._starting = self._loop.create_task(work)

        self._loop.call_soon_threadsafe(begin)

    def _tell(self, *said: FromWorker | WorkersStopped) -> None:
        self._heard.extend(said)
        self.wake()

    def _seat(self, rank: int) -> Seat | None:
        seats = self._crew.seats if self._crew is not None else []
        return next((seat for seat in seats if seat.rank == rank), None)

    async def _begin(self, group: Group) -> None:
        try:
            crew = await self._placed(len(group.workers), group.preload)
            places = [seat.where for seat in crew.seats]
            job = self._ray.put(group.job)
            for rank, seat in enumerate(crew.seats):
                seat.rank, seat.pid, seat.spoken, seat.stopped = rank, 0, False, False
                seat.log = group.workers[rank].log
                spec = seated(group.workers[rank], rank, places, self._wanted)
                spec.env.setdefault("RAY_ADDRESS", gcs_address())
                start = Start(
                    spec.begin, str(spec.log), spec.env, group.preload, group.preload_later, group.start_method
                )
                seat.actor.start.remote(self._token, encode(start), job)
            self._starting = None
            for rank, payload in self._unsent:
                self._send(rank, payload)
        except (self._ray.exceptions.RayError, Refused) as error:
            self._starting = None
            await self._dismissed()
            kind = error.kind if isinstance(error, Refused) else "engine"
            told = str(error) if isinstance(error, Refused) else _first_line(error)
            again = not isinstance(error, Refused)
            failure = Failure(0, kind, told, at=time.time(), host=socket.gethostname(), retriable=again)
            self._tell(WorkerFailed(group.attempt, 0, failure))
            if self._stopping:
                self._tell(WorkersStopped(group.attempt))

    async def _placed(self, size: int, preload: tuple[str, ...]) -> Crew:
        """The actors of a group, in the order of their ranks."""
        if self._crew is not None and (len(self._crew.seats) != size or not self._crew.is_whole):
            await self._dismissed()
        if self._crew is not None:
            return self._crew
        group = self._ray.util.placement_group([self._wanted.bundle] * size, strategy=self._wanted.strategy)
        self._crew = crew = Crew(group)
        while not await asyncio.to_thread(group.wait, _LOOK_S):
            pass
        actors = [self._actor(group, bundle, preload) for bundle in range(size)]
        files = self._escort.files()
        asked = (actor.where.remote(self._token, files) for actor in actors)
        places: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
        for bundle, problem in enumerate(places):
            if isinstance(problem, Exception):
                for actor in actors:
                    self._ray.kill(actor)
                raise await self._escort.explained(problem, group, bundle) from problem
        try:
            await self._escort.check(self._token, list(zip(actors, places, strict=True)))
        except Refused:
            for actor in actors:
                self._ray.kill(actor)
            raise
        for index in order_of(places):
            seat = Seat(actors[index], index, places[index])
            seat.listening = self._loop.create_task(self._listen(seat))
            crew.seats.append(seat)
        return crew

    def _actor(self, group: Any, bundle: int, preload: tuple[str, ...]) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        asked = dict(self._wanted.bundle)
        options: dict[str, Any] = {
            "num_cpus": asked.pop("CPU", 0),
            "num_gpus": asked.pop("GPU", 0),
            "resources": asked,
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
        }
        return (
            self._ray.remote(Shell)
            .options(**options, **self._escort.options)
            .remote(self._token, preload, self._escort.kit)
        )

    async def _listen(self, seat: Seat) -> None:
        """Hear all that an actor has to tell, for as long as it lives."""
        stream = seat.actor.said.options(num_returns="streaming").remote(self._token)
        try:
            async for ref in stream:
                said = msgspec.json.decode(await ref, type=Said)
                seat.pid = said.pid or seat.pid
                heard(said, seat.log)
                for payload in said.messages:
                    message = decode_from_worker(payload)
                    seat.spoken = seat.spoken or isinstance(message, WorkerReturned | WorkerFailed)
                    self._tell(message)
                if said.stopped is not None:
                    self._stopped(seat)
        except self._ray.exceptions.RayError as error:
            self._lost(seat, error)

    def _lost(self, seat: Seat, error: Exception) -> None:
        seat.lost = True
        if not seat.stopped:
            if not seat.spoken and not self._stopping:
                failure = self._failure(seat, error)
                self._tell(WorkerFailed(self._attempt, seat.rank, failure))
            self._stopped(seat)

    def _failure(self, seat: Seat, error: Exception) -> Failure:
        kind: FailureKind = "killed"
        node = next((node for node in self._ray.nodes() if node["NodeID"] == seat.where.node_id), None)
        message = f"the actor around it ended: {_first_line(error)}"
        if node is None or not node["Alive"]:
            message = f"its node {seat.where.address} was lost"
        return Failure(seat.rank, kind, message, at=time.time(), host=seat.where.host)

    def _stopped(self, seat: Seat) -> None:
        seat.stopped = True
        assert self._crew is not None
        if all(each.stopped for each in self._crew.seats):
            self._tell(WorkersStopped(self._attempt))

    def _send(self, rank: int, payload: bytes) -> None:
        if self._starting is not None:
            self._unsent.append((rank, payload))
            return
        seat = self._seat(rank)
        if seat is not None and not seat.stopped and not seat.lost:
            seat.actor.send.remote(self._token, payload)

    def _stop(self, kill: bool) -> None:
        self._stopping = self._stopping or kill
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
            self._tell(WorkersStopped(self._attempt))
            return
        seats = self._crew.seats if self._crew is not None else []
        running = [seat for seat in seats if not seat.stopped]
        if not running:
            self._tell(WorkersStopped(self._attempt))
        for seat in running:
            seat.actor.send.remote(self._token, encode(Exit()))
            seat.actor.stop.remote(self._token, kill)

    async def _dismissed(self) -> None:
        """Let the actors and their places go."""
        crew, self._crew = self._crew, None
        if crew is None:
            return
        for seat in crew.seats:
            seat.stopped = True
            self._ray.kill(seat.actor)
        listening = [seat.listening for seat in crew.seats if seat.listening is not None]
        if listening:
            await asyncio.wait(listening, timeout=_CLOSE_S)
        self._ray.util.remove_placement_group(crew.group)

    async def _end(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        await self._dismissed()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
