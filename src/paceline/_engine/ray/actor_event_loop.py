"""The event loop that talks to the actors of a run, on a separate thread: it drives each attempt from placement to end.

It places the actors, starts their workers, reads each actor's stream and watches for draining nodes. Any error here is
reported as an engine failure and ends the attempt, so nothing waits for a message that cannot come.
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
from paceline._engine.base import WorkerGroupSpec
from paceline._engine.messages import (
    FailureKind,
    FromWorker,
    PreemptionNoticeReceived,
    Reported,
    StopAt,
    ToWorker,
    WorkerFailed,
    WorkerFailure,
    WorkerReturned,
    WorkersStopped,
    decode_from_worker,
    encode_message,
)
from paceline._engine.ray.actor_pool import ActorPool, ActorSlot, InsufficientCapacity
from paceline._engine.ray.cluster_monitor import DaemonThreadExecutor
from paceline._engine.ray.connection import gcs_address
from paceline._engine.ray.node_preparer import StartRefused, save_worker_log
from paceline._engine.ray.nodes import (
    find_drain_notices,
    make_loss_failure,
    parse_loss,
    read_draining_nodes,
    summarize_loss,
    survey_cluster,
)
from paceline._engine.ray.placement import place_worker
from paceline._engine.ray.unsent_reports import read_unsent_reports
from paceline._engine.ray.worker_actor import WorkerOutput, WorkerStartRequest

_STOP_TIMEOUT_S = 60.0
"""How long an actor may take to end its worker: longer than a cluster takes to detect a lost node."""
_WATCH_INTERVAL_S = 1.0
"""How often to check for draining nodes."""

T = TypeVar("T")


@dataclass(eq=False)
class _ActorAttempt:
    """The workers of one group, from `start` to `WorkersStopped`."""

    group: WorkerGroupSpec
    start_task: asyncio.Task[None] | None = None
    end_task: asyncio.Task[None] | None = None
    is_placing: bool = True
    """Its actors are being placed, which can still be cancelled."""
    slots: list[ActorSlot] = field(default_factory=list)
    """In rank order; empty until the workers are started."""
    num_left: int = 0
    """How many of them have not ended."""
    is_kill_requested: bool = False
    """A kill of the workers was requested."""
    is_over: bool = False
    unsent: list[tuple[int, ToWorker]] = field(default_factory=list)
    """Messages sent before the workers were started."""
    notified_nodes: set[str] = field(default_factory=set)
    """Draining nodes that the workers have been notified about."""

    @property
    def number(self) -> int:
        return self.group.attempt


class ActorEventLoop:
    def __init__(
        self,
        ray: Any,
        crew: ActorPool,
        tell: Callable[[FromWorker | WorkersStopped], None],
        say: Callable[[str], None],
        *,
        moves: bool = False,
    ) -> None:
        """`tell` receives messages for the controller, `say` messages for the user.

        `moves`: this process is restarted elsewhere when its node is taken away, so the run continues.
        """
        self._ray = ray
        self.actor_pool = crew
        self._token = crew.token
        self._emit = tell
        self._notify_user = say
        self.is_waiting = False
        """Waiting for capacity: no worker has been started."""
        self._attempt: _ActorAttempt | None = None
        self._driver = "" if moves else ray.get_runtime_context().get_node_id()
        self._grace_s = settings.load().preemption_grace_s
        self._draining: dict[str, float] = {}
        """All nodes ever seen draining."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_watching = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(DaemonThreadExecutor())
        self._thread = threading.Thread(target=self._loop.run_forever, name="paceline-ray", daemon=True)
        self._thread.start()

    # Called from the controller's thread

    def start(self, group: WorkerGroupSpec) -> None:
        self.is_waiting = True
        self._call_soon(self._start, group)

    def send(self, rank: int, message: ToWorker) -> None:
        self._call_soon(self._send, rank, message)

    def stop(self, kill: bool) -> None:
        self._call_soon(self._stop, kill)

    def find_slot(self, rank: int) -> ActorSlot | None:
        now = self._attempt
        return now.slots[rank] if now is not None and rank < len(now.slots) else None

    def run_blocking(self, look: Callable[[], T], timeout_s: float) -> T:
        """Run a blocking call in a worker thread, with a timeout."""

        async def run_in_thread() -> T:
            return await asyncio.to_thread(look)

        return asyncio.run_coroutine_threadsafe(run_in_thread(), self._loop).result(timeout_s)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Everything below runs on the event loop's thread

    def _call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(self._call_safely, call, *arguments)

    def _call_safely(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001  told as a failure of the engine
            self._on_engine_error(error)

    def _create_task(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        async def run_safely() -> None:
            try:
                await work(*arguments)
            except Exception as error:  # noqa: BLE001  told as a failure of the engine
                self._on_engine_error(error)

        task = self._loop.create_task(run_safely())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start(self, group: WorkerGroupSpec) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._create_task(self._watch_draining)
        self._attempt = now = _ActorAttempt(group)
        now.start_task = self._create_task(self._start_attempt, now)

    async def _start_attempt(self, now: _ActorAttempt) -> None:
        try:
            job = await asyncio.to_thread(self._ray.put, now.group.job)
            self._launch(now, await self._place_actors(now.group), job)
        except InsufficientCapacity as short:
            now.is_placing = False
            self._report_failure(now, f"the workers were not started: {short}")
            self._finish_attempt(now)
        except StartRefused as refused:
            now.is_placing = False
            self._report_failure(now, str(refused), refused.kind, again=False)
            await self.actor_pool.release_all()
            self._finish_attempt(now)
        except Exception as error:  # noqa: BLE001  told as a failure of the engine
            now.is_placing = False
            self._report_failure(now, f"the workers could not be started: {summarize_loss(parse_loss(error))}")
            await self.actor_pool.release_all()
            self._finish_attempt(now)

    async def _place_actors(self, group: WorkerGroupSpec) -> list[ActorSlot]:
        return await self.actor_pool.place_actors(len(group.workers), _modules_to_preload(group), self._read_stream)

    def _launch(self, now: _ActorAttempt, seats: list[ActorSlot], job: Any) -> None:
        places = [seat.placement for seat in seats]
        address = gcs_address()
        group = now.group
        for rank, seat in enumerate(seats):
            seat.rank, seat.pid, seat.last_seq, seat.has_reported_end, seat.is_stopped = rank, 0, 0, False, False
            spec = place_worker(group.workers[rank], rank, places, self.actor_pool.placement_spec)
            seat.log = spec.log
            spec.env.setdefault("RAY_ADDRESS", address)
            start = WorkerStartRequest(
                spec.begin, str(spec.log), spec.env, group.preload, group.preload_later, group.start_method
            )
            self._track_call(seat, seat.actor.start.remote(self._token, encode_message(start), job))
        now.is_placing = self.is_waiting = False
        now.slots, now.num_left = seats, len(seats)
        for rank, message in now.unsent:
            self._send(rank, message)

    def _send(self, rank: int, message: ToWorker) -> None:
        now = self._attempt
        if now is None or now.is_over:
            return
        if now.is_placing:
            now.unsent.append((rank, message))
            return
        seat = self.find_slot(rank)
        if seat is not None and not seat.is_stopped and not seat.is_lost:
            self._track_call(
                seat, seat.actor.send.remote(self._token, encode_message(_add_nodes_to_notice(message, now.slots)))
            )

    def _stop(self, kill: bool) -> None:
        now = self._attempt
        if now is None or now.is_over:
            return
        first = kill and not now.is_kill_requested
        now.is_kill_requested = now.is_kill_requested or kill
        if now.is_placing:
            self._abandon_attempt(now)
            return
        for seat in now.slots:
            if not seat.is_stopped and not seat.is_lost:
                self._track_call(seat, seat.actor.stop.remote(self._token, kill))
        if first:
            self._loop.call_later(_STOP_TIMEOUT_S, self._call_safely, self._abandon_unstopped, now)

    def _abandon_unstopped(self, now: _ActorAttempt) -> None:
        """Stop waiting for actors whose workers should have ended."""
        for seat in now.slots:
            if not now.is_over and not seat.is_stopped and not seat.is_lost:
                self._create_task(
                    self._on_actor_lost, seat, TimeoutError(f"its worker was not ended within {_STOP_TIMEOUT_S:g} s")
                )

    def _abandon_attempt(self, now: _ActorAttempt) -> asyncio.Task[None]:
        """End an attempt and release its actors and bundles, once. The next attempt gets new actors."""
        if now.end_task is None:
            now.end_task = self._create_task(self._release_attempt, now)
        return now.end_task

    async def _release_attempt(self, now: _ActorAttempt) -> None:
        assert now.start_task is not None
        if now.is_placing:
            now.is_placing = False
            now.start_task.cancel()
        await asyncio.wait([now.start_task])
        await self.actor_pool.release_all()
        self._finish_attempt(now)

    def _finish_attempt(self, now: _ActorAttempt) -> None:
        if not now.is_over:
            now.is_over = True
            self.is_waiting = False
            self._emit(WorkersStopped(now.number))

    async def _shut_down(self) -> None:
        if self._attempt is not None:
            self._attempt.is_over = True
            await asyncio.wait([self._abandon_attempt(self._attempt)])
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    # Output from actors, and the loss of actors

    async def _read_stream(self, seat: ActorSlot) -> None:
        """Read an actor's output for as long as it lives."""
        error: Exception = EOFError("its stream ended")
        try:
            async for ref in seat.actor.stream_output.options(num_returns="streaming").remote(self._token):
                self._handle_output(seat, msgspec.json.decode(await ref, type=WorkerOutput))
        except Exception as problem:  # noqa: BLE001  whatever it is, nothing more is heard
            error = problem
        try:
            await self._on_actor_lost(seat, error)
        except Exception as problem:  # noqa: BLE001  told as a failure of the engine
            self._on_engine_error(problem)

    def _handle_output(self, seat: ActorSlot, said: WorkerOutput) -> None:
        seat.pid = said.pid or seat.pid
        save_worker_log(said, seat.log)
        for payload in said.messages:
            message = decode_from_worker(payload)
            seat.has_reported_end = seat.has_reported_end or isinstance(message, WorkerReturned | WorkerFailed)
            seat.last_seq = message.seq if isinstance(message, Reported) else seat.last_seq
            self._emit(
                self._expand_to_node(seat, message) if isinstance(message, PreemptionNoticeReceived) else message
            )
        if said.stopped_attempt is not None:
            self._on_worker_gone(seat)

    def _expand_to_node(self, seat: ActorSlot, told: PreemptionNoticeReceived) -> PreemptionNoticeReceived:
        """Extend a worker's preemption notice to all workers on its machine, and only those."""
        node = seat.placement.node_id
        seats = self._attempt.slots if self._attempt is not None else []
        ranks = tuple(each.rank for each in seats if each.placement.node_id == node)
        return replace(told, ranks=ranks, includes_driver=node == self._driver)

    def _on_worker_gone(self, seat: ActorSlot) -> None:
        """Record that the worker's process is gone."""
        now = self._attempt
        if seat.is_stopped or now is None or now.is_over:
            return
        seat.is_stopped = True
        now.num_left -= 1
        if not now.num_left:
            self._finish_attempt(now)

    async def _on_actor_lost(self, seat: ActorSlot, error: Exception) -> None:
        """Handle the loss of an actor. The reason is known only once the cluster knows it."""
        at, now, known = time.time(), self._attempt, seat.is_lost
        seat.is_lost = True
        if known or seat.is_stopped or now is None or now.is_over:
            return  # If it had no worker, the next group will simply get another actor.
        if isinstance(error, self._ray.exceptions.ActorUnavailableError):
            try:
                await self.actor_pool.query_placement(seat)
            except Exception as problem:  # noqa: BLE001  told below
                error = problem
        survey = await asyncio.to_thread(survey_cluster, self._ray)
        missed = await asyncio.to_thread(read_unsent_reports, now.group.workers[seat.rank].begin, seat.last_seq)
        if not seat.is_working():
            return  # Released meanwhile, with all others.
        for message in missed:
            self._emit(message)
        if not seat.has_reported_end:
            # Also while workers are being stopped: a stop ends workers, never actors, and this loss may be its reason.
            drained = seat.placement.node_id in self._draining
            failure = make_loss_failure(parse_loss(error), seat.rank, seat.placement, survey, drained=drained, at=at)
            self._emit(WorkerFailed(now.number, seat.rank, failure))
        if not isinstance(error, self._ray.exceptions.ActorDiedError):
            self._ray.kill(seat.actor)  # An actor that cannot be heard must not keep running.
        self._on_worker_gone(seat)

    def _track_call(self, seat: ActorSlot, call: Awaitable[None]) -> None:
        """Treat an actor that raises in a call as failed; the stream reports one that is lost."""

        async def await_call() -> None:
            try:
                await call
            except self._ray.exceptions.RayTaskError as error:
                if not seat.is_lost:
                    await self._on_actor_lost(seat, error)
            except self._ray.exceptions.RayError:
                pass

        self._create_task(await_call)

    def _report_failure(
        self, now: _ActorAttempt, message: str, kind: FailureKind = "engine", *, again: bool = True
    ) -> None:
        failure = WorkerFailure(0, kind, message, at=time.time(), host=socket.gethostname(), retriable=again)
        self._emit(WorkerFailed(now.number, 0, failure))

    def _on_engine_error(self, error: Exception) -> None:
        """The engine itself failed: end the attempt and release everything it holds."""
        now = self._attempt
        if now is None or now.is_over:
            return
        if not now.is_kill_requested:
            self._report_failure(now, f"the Ray engine failed: {summarize_loss(parse_loss(error))}")
        now.is_kill_requested = True
        self._abandon_attempt(now)

    async def _watch_draining(self) -> None:
        """Watch for draining nodes, and send notices for those that matter."""
        silent = False
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            try:
                found = await asyncio.to_thread(read_draining_nodes)
            except Exception as problem:  # noqa: BLE001  said, once; the run can do without
                if not silent:
                    told = summarize_loss(parse_loss(problem))
                    self._notify_user(f"the cluster does not say which nodes are being drained: {told}")
                silent = True
                continue
            silent = False
            self._draining |= found
            now = self._attempt
            if now is None or now.is_over:
                continue
            places = [seat.placement.node_id for seat in now.slots]
            for notice in find_drain_notices(
                found, now.notified_nodes, places, self._driver, time.time(), self._grace_s
            ):
                now.notified_nodes.add(notice.node_id)
                self._emit(PreemptionNoticeReceived(now.number, notice.grace_s, notice.ranks, notice.includes_driver))


def _add_nodes_to_notice(message: ToWorker, seats: list[ActorSlot]) -> ToWorker:
    """Add the affected machines to a preemption notice."""
    if not isinstance(message, StopAt) or message.preemption is None:
        return message
    ranks_on: dict[str, list[int]] = {}
    for rank in message.preemption.ranks:
        ranks_on.setdefault(seats[rank].placement.node_id, []).append(rank)
    nodes = tuple((node, tuple(ranks)) for node, ranks in ranks_on.items())
    return replace(message, preemption=replace(message.preemption, nodes=nodes))


def _modules_to_preload(group: WorkerGroupSpec) -> tuple[str, ...]:
    """Return the modules to preload in the zygote before workers start; spawned workers import their own."""
    return group.preload if group.start_method == "fork" else ()
