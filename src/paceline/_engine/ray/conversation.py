"""The conversation with the actors of a run, on a thread of its own: the life of each attempt, from places to the end.

It has the actors placed, starts their workers, hears each actor's stream, and looks for nodes that are being drained.
Whatever goes wrong here is told as a failure of the engine and ends the attempt: nothing is waited for that cannot
come.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from paceline._core import settings
from paceline._engine.base import Group
from paceline._engine.messages import (
    Failure,
    FailureKind,
    FromWorker,
    PreemptionTold,
    Reported,
    StopAt,
    ToWorker,
    WorkerFailed,
    WorkerReturned,
    WorkersStopped,
    decode_from_worker,
    encode,
)
from paceline._engine.ray.connect import gcs_address
from paceline._engine.ray.crew import Crew, Seat, Unroomed
from paceline._engine.ray.escort import Refused, heard
from paceline._engine.ray.nodes import draining, failure_of, first_line, loss_of, notices, surveyed
from paceline._engine.ray.placement import seated
from paceline._engine.ray.presence import Leavable
from paceline._engine.ray.shell import Said, Start
from paceline._engine.ray.unheard import unheard

_STOP_S = 60.0
"""How long an actor may take to end its worker: longer than a cluster takes to find out that a node is lost."""
_WATCH_S = 1.0
"""How often it is looked for nodes that are being drained."""

T = TypeVar("T")


@dataclass(eq=False)
class _Attempt:
    """The workers of one group, from `start` to `WorkersStopped`."""

    group: Group
    beginning: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    placing: bool = True
    """Its actors are being placed, and that can be given up."""
    seats: list[Seat] = field(default_factory=list)
    """In the order of ranks; empty until they are started."""
    num_left: int = 0
    """How many of them have not ended."""
    killed: bool = False
    """Their end was asked for."""
    over: bool = False
    unsent: list[tuple[int, ToWorker]] = field(default_factory=list)
    """What was to be sent before they were started."""
    told: set[str] = field(default_factory=set)
    """The nodes of whose end they know."""

    @property
    def number(self) -> int:
        return self.group.attempt


class Conversation:
    def __init__(
        self,
        ray: Any,
        crew: Crew,
        tell: Callable[[FromWorker | WorkersStopped], None],
        say: Callable[[str], None],
        *,
        moves: bool = False,
    ) -> None:
        """`tell` takes what the controller has to know, `say` what a person may want to.

        `moves`: this process is started again elsewhere when its node is taken away, so that the run goes on.
        """
        self._ray = ray
        self.crew = crew
        self._token = crew.token
        self._tell = tell
        self._say = say
        self.waits = False
        """For places: no worker has been started."""
        self._now: _Attempt | None = None
        self._driver = "" if moves else ray.get_runtime_context().get_node_id()
        self._grace_s = settings.load().preemption_grace_s
        self._draining: dict[str, float] = {}
        """All nodes that were ever seen to be drained."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(Leavable())
        self._thread = threading.Thread(target=self._loop.run_forever, name="paceline-ray", daemon=True)
        self._thread.start()

    # From the controller's thread

    def start(self, group: Group) -> None:
        self.waits = True
        self._soon(self._start, group)

    def send(self, rank: int, message: ToWorker) -> None:
        self._soon(self._send, rank, message)

    def stop(self, kill: bool) -> None:
        self._soon(self._stop, kill)

    def seat(self, rank: int) -> Seat | None:
        now = self._now
        return now.seats[rank] if now is not None and rank < len(now.seats) else None

    def ask(self, look: Callable[[], T], timeout_s: float) -> T:
        """Have something looked at that may block, for so long at most."""

        async def found() -> T:
            return await asyncio.to_thread(look)

        return asyncio.run_coroutine_threadsafe(found(), self._loop).result(timeout_s)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # All that follows is on the thread of the conversation

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(self._safely, call, *arguments)

    def _safely(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001  told as a failure of the engine
            self._broken(error)

    def _do(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        async def safely() -> None:
            try:
                await work(*arguments)
            except Exception as error:  # noqa: BLE001  told as a failure of the engine
                self._broken(error)

        task = self._loop.create_task(safely())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start(self, group: Group) -> None:
        if not self._watching:
            self._watching = True
            self._do(self._watch)
        self._now = now = _Attempt(group)
        now.beginning = self._do(self._begin, now)

    async def _begin(self, now: _Attempt) -> None:
        try:
            job = await asyncio.to_thread(self._ray.put, now.group.job)
            self._launch(now, await self._placed(now.group), job)
        except Unroomed as short:
            now.placing = False
            self._fail(now, f"the workers were not started: {short}")
            self._over(now)
        except Refused as refused:
            now.placing = False
            self._fail(now, str(refused), refused.kind, again=False)
            await self.crew.dismissed()
            self._over(now)
        except Exception as error:  # noqa: BLE001  told as a failure of the engine
            now.placing = False
            self._fail(now, f"the workers could not be started: {first_line(loss_of(error))}")
            await self.crew.dismissed()
            self._over(now)

    async def _placed(self, group: Group) -> list[Seat]:
        return await self.crew.placed(len(group.workers), _ahead(group), self._listen)

    def _launch(self, now: _Attempt, seats: list[Seat], job: Any) -> None:
        places = [seat.where for seat in seats]
        address = gcs_address()
        group = now.group
        for rank, seat in enumerate(seats):
            seat.rank, seat.pid, seat.num_heard, seat.spoken, seat.stopped = rank, 0, 0, False, False
            spec = seated(group.workers[rank], rank, places, self.crew.wanted)
            seat.log = spec.log
            spec.env.setdefault("RAY_ADDRESS", address)
            start = Start(spec.begin, str(spec.log), spec.env, group.preload, group.preload_later, group.start_method)
            self._heed(seat, seat.actor.start.remote(self._token, encode(start), job))
        now.placing = self.waits = False
        now.seats, now.num_left = seats, len(seats)
        for rank, message in now.unsent:
            self._send(rank, message)

    def _send(self, rank: int, message: ToWorker) -> None:
        now = self._now
        if now is None or now.over:
            return
        if now.placing:
            now.unsent.append((rank, message))
            return
        seat = self.seat(rank)
        if seat is not None and not seat.stopped and not seat.lost:
            self._heed(seat, seat.actor.send.remote(self._token, encode(_with_nodes(message, now.seats))))

    def _stop(self, kill: bool) -> None:
        now = self._now
        if now is None or now.over:
            return
        first = kill and not now.killed
        now.killed = now.killed or kill
        if now.placing:
            self._give_up(now)
            return
        for seat in now.seats:
            if not seat.stopped and not seat.lost:
                self._heed(seat, seat.actor.stop.remote(self._token, kill))
        if first:
            self._loop.call_later(_STOP_S, self._safely, self._insist, now)

    def _insist(self, now: _Attempt) -> None:
        """Wait no longer for those whose workers should have ended."""
        for seat in now.seats:
            if not now.over and not seat.stopped and not seat.lost:
                self._do(self._lost, seat, TimeoutError(f"its worker was not ended within {_STOP_S:g} s"))

    def _give_up(self, now: _Attempt) -> asyncio.Task[None]:
        """End an attempt with all that it has, actors and places. Once: the next attempt has actors of its own."""
        if now.ending is None:
            now.ending = self._do(self._given_up, now)
        return now.ending

    async def _given_up(self, now: _Attempt) -> None:
        assert now.beginning is not None
        if now.placing:
            now.placing = False
            now.beginning.cancel()
        await asyncio.wait([now.beginning])
        await self.crew.dismissed()
        self._over(now)

    def _over(self, now: _Attempt) -> None:
        if not now.over:
            now.over = True
            self.waits = False
            self._tell(WorkersStopped(now.number))

    async def _end(self) -> None:
        if self._now is not None:
            self._now.over = True
            await asyncio.wait([self._give_up(self._now)])
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    # What is heard, and what is lost

    async def _listen(self, seat: Seat) -> None:
        """Hear all that an actor has to tell, for as long as it lives."""
        error: Exception = EOFError("its stream ended")
        try:
            async for ref in seat.actor.said.options(num_returns="streaming").remote(self._token):
                self._hear(seat, msgspec.json.decode(await ref, type=Said))
        except Exception as problem:  # noqa: BLE001  whatever it is, nothing more is heard
            error = problem
        try:
            await self._lost(seat, error)
        except Exception as problem:  # noqa: BLE001  told as a failure of the engine
            self._broken(problem)

    def _hear(self, seat: Seat, said: Said) -> None:
        seat.pid = said.pid or seat.pid
        heard(said, seat.log)
        for payload in said.messages:
            message = decode_from_worker(payload)
            seat.spoken = seat.spoken or isinstance(message, WorkerReturned | WorkerFailed)
            seat.num_heard = message.seq if isinstance(message, Reported) else seat.num_heard
            self._tell(self._of_node(seat, message) if isinstance(message, PreemptionTold) else message)
        if said.stopped is not None:
            self._left(seat)

    def _of_node(self, seat: Seat, told: PreemptionTold) -> PreemptionTold:
        """A worker was told that its machine goes: so do all those that are on it, and no others."""
        node = seat.where.node_id
        seats = self._now.seats if self._now is not None else []
        ranks = tuple(each.rank for each in seats if each.where.node_id == node)
        return replace(told, ranks=ranks, whole=node == self._driver)

    def _left(self, seat: Seat) -> None:
        """The process of its worker is gone."""
        now = self._now
        if seat.stopped or now is None or now.over:
            return
        seat.stopped = True
        now.num_left -= 1
        if not now.num_left:
            self._over(now)

    async def _lost(self, seat: Seat, error: Exception) -> None:
        """Nothing more will be heard of an actor. What became of it is known when the cluster knows."""
        at, now, known = time.time(), self._now, seat.lost
        seat.lost = True
        if known or seat.stopped or now is None or now.over:
            return  # If no worker was there, the next group will have another actor.
        if isinstance(error, self._ray.exceptions.ActorUnavailableError):
            try:
                await self.crew.where(seat)
            except Exception as problem:  # noqa: BLE001  told below
                error = problem
        survey = await asyncio.to_thread(surveyed, self._ray)
        missed = await asyncio.to_thread(unheard, now.group.workers[seat.rank].begin, seat.num_heard)
        if not seat.is_at_work():
            return  # Let go meanwhile, with all others.
        for message in missed:
            self._tell(message)
        if not seat.spoken:
            # Also when all are being ended: that ends workers, never actors, and what was lost may be why it is done.
            drained = seat.where.node_id in self._draining
            failure = failure_of(loss_of(error), seat.rank, seat.where, survey, drained=drained, at=at)
            self._tell(WorkerFailed(now.number, seat.rank, failure))
        if not isinstance(error, self._ray.exceptions.ActorDiedError):
            self._ray.kill(seat.actor)  # What cannot be heard is not to go on.
        self._left(seat)

    def _heed(self, seat: Seat, call: Awaitable[None]) -> None:
        """An actor that raises at what it is told has failed; of one that is lost its stream tells."""

        async def answered() -> None:
            try:
                await call
            except self._ray.exceptions.RayTaskError as error:
                if not seat.lost:
                    await self._lost(seat, error)
            except self._ray.exceptions.RayError:
                pass

        self._do(answered)

    def _fail(self, now: _Attempt, message: str, kind: FailureKind = "engine", *, again: bool = True) -> None:
        failure = Failure(0, kind, message, at=time.time(), host=socket.gethostname(), retriable=again)
        self._tell(WorkerFailed(now.number, 0, failure))

    def _broken(self, error: Exception) -> None:
        """Something is wrong with the engine itself: the attempt ends, and all that it had is let go."""
        now = self._now
        if now is None or now.over:
            return
        if not now.killed:
            self._fail(now, f"the Ray engine failed: {first_line(loss_of(error))}")
        now.killed = True
        self._give_up(now)

    async def _watch(self) -> None:
        """Look for nodes that are being drained, and tell of those that matter."""
        silent = False
        while True:
            await asyncio.sleep(_WATCH_S)
            try:
                found = await asyncio.to_thread(draining)
            except Exception as problem:  # noqa: BLE001  said, once; the run can do without
                if not silent:
                    told = first_line(loss_of(problem))
                    self._say(f"the cluster does not say which nodes are being drained: {told}")
                silent = True
                continue
            silent = False
            self._draining |= found
            now = self._now
            if now is None or now.over:
                continue
            places = [seat.where.node_id for seat in now.seats]
            for notice in notices(found, now.told, places, self._driver, time.time(), self._grace_s):
                now.told.add(notice.node_id)
                self._tell(PreemptionTold(now.number, notice.grace_s, notice.ranks, notice.whole))


def _with_nodes(message: ToWorker, seats: list[Seat]) -> ToWorker:
    """A notice of preemption says which machines are meant."""
    if not isinstance(message, StopAt) or message.preemption is None:
        return message
    ranks_on: dict[str, list[int]] = {}
    for rank in message.preemption.ranks:
        ranks_on.setdefault(seats[rank].where.node_id, []).append(rank)
    nodes = tuple((node, tuple(ranks)) for node, ranks in ranks_on.items())
    return replace(message, preemption=replace(message.preemption, nodes=nodes))


def _ahead(group: Group) -> tuple[str, ...]:
    """What is imported before workers are asked for, in the process they fork from; those that are spawned do it."""
    return group.preload if group.start_method == "fork" else ()
