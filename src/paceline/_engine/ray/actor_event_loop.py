"""The event loop that talks to the actors of a run, on a separate thread: it drives each attempt from placement to end.

It places the actors, starts their workers, reads each actor's stream and watches for draining nodes. Any error here is
reported as an engine failure and ends the attempt, so nothing waits for a message that cannot come.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from paceline._core import settings
from paceline._engine import messages
from paceline._engine.base import WorkerGroupSpec
from paceline._engine.messages import FromWorker, ToWorker, WorkersStopped
from paceline._engine.ray import nodes
from paceline._engine.ray.actor_pool import ActorPool, ActorSlot, InsufficientCapacity
from paceline._engine.ray.cluster_monitor import DaemonThreadExecutor
from paceline._engine.ray.connection import gcs_address
from paceline._engine.ray.node_preparer import StartRefused
from paceline._engine.ray.placement import place_worker
from paceline._engine.ray.worker_actor import WorkerOutput
from paceline._engine.ray.worker_files import append_to_log, read_unsent_reports

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
    is_over: bool = False
    unsent: list[tuple[int, ToWorker]] = field(default_factory=list)
    """Messages sent before the workers were started."""
    notified_nodes: set[str] = field(default_factory=set)
    """Draining nodes that the workers have been notified about."""


class ActorEventLoop:
    def __init__(
        self,
        ray: Any,
        actor_pool: ActorPool,
        emit: Callable[[FromWorker | WorkersStopped], None],
        say: Callable[[str], None],
        *,
        is_movable: bool = False,
    ) -> None:
        """`emit` receives messages for the controller, `say` messages for the user.

        `is_movable`: this process is restarted elsewhere when its node is taken away, so the run continues.
        """
        self._ray = ray
        self.actor_pool = actor_pool
        self._token = actor_pool.token
        self._emit = emit
        self._notify_user = say
        self.is_waiting = False
        """Waiting for capacity: no worker has been started."""
        self._attempt: _ActorAttempt | None = None
        self._driver = "" if is_movable else ray.get_runtime_context().get_node_id()
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

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a method of this object, such as `start`, on its own thread."""
        self._loop.call_soon_threadsafe(self._call_safely, call, *arguments)

    def find_slot(self, rank: int) -> ActorSlot | None:
        attempt = self._attempt
        return attempt.slots[rank] if attempt is not None and rank < len(attempt.slots) else None

    def run_blocking(self, call: Callable[[], T], timeout_s: float) -> T:
        """Run a blocking call in a worker thread, with a timeout."""
        return asyncio.run_coroutine_threadsafe(asyncio.to_thread(call), self._loop).result(timeout_s)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Everything below runs on the event loop's thread

    def _find_attempt(self) -> _ActorAttempt | None:
        return None if self._attempt is None or self._attempt.is_over else self._attempt

    def _call_safely(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 - reported as a failure of the engine
            self._on_engine_error(error)

    def _create_task(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        async def run_safely() -> None:
            try:
                await work(*arguments)
            except Exception as error:  # noqa: BLE001 - reported as a failure of the engine
                self._on_engine_error(error)

        task = self._loop.create_task(run_safely())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start(self, group: WorkerGroupSpec) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._create_task(self._watch_draining)
        self._attempt = attempt = _ActorAttempt(group)
        attempt.start_task = self._create_task(self._start_attempt, attempt)

    async def _start_attempt(self, attempt: _ActorAttempt) -> None:
        group = attempt.group
        # Modules to preload in the zygote before workers start; spawned workers import their own.
        preload = group.preload if group.start_method == "fork" else ()
        try:
            job = await asyncio.to_thread(self._ray.put, group.job)
            read = partial(self._create_task, self._read_stream)
            slots = await self.actor_pool.place_actors(len(group.workers), preload, read)
            self._launch(attempt, slots, job)
        except Exception as error:  # noqa: BLE001 - reported as a failure of the engine
            attempt.is_placing = False
            if isinstance(error, StartRefused):
                self._report_failure(attempt, str(error), error.kind, again=False)
            elif isinstance(error, InsufficientCapacity):
                self._report_failure(attempt, f"workers not started: {error}")
            else:
                self._report_failure(attempt, f"cannot start the workers: {nodes.summarize_error(error)}")
            if not isinstance(error, InsufficientCapacity):
                await self.actor_pool.release_all()
            self._finish_attempt(attempt)

    def _launch(self, attempt: _ActorAttempt, slots: list[ActorSlot], job: Any) -> None:
        places = [slot.placement for slot in slots]
        address = gcs_address()
        group = attempt.group
        for rank, slot in enumerate(slots):
            slot.rank, slot.pid, slot.last_seq, slot.has_reported_end, slot.is_stopped = rank, 0, 0, False, False
            spec = place_worker(group.workers[rank], rank, places, self.actor_pool.placement_spec)
            slot.log = spec.log
            spec.env.setdefault("RAY_ADDRESS", address)
            group_of_one = dataclasses.replace(group, workers=(spec,), job=b"")
            self._track_call(slot, slot.actor.start.remote(self._token, group_of_one, job))
        attempt.is_placing = self.is_waiting = False
        attempt.slots, attempt.num_left = slots, len(slots)
        for rank, message in attempt.unsent:
            self.send(rank, message)

    def send(self, rank: int, message: ToWorker) -> None:
        if (attempt := self._find_attempt()) is None:
            return
        if attempt.is_placing:
            attempt.unsent.append((rank, message))
            return
        slot = self.find_slot(rank)
        if slot is not None and not slot.is_stopped and not slot.is_lost:
            self._track_call(
                slot,
                slot.actor.send.remote(
                    self._token, messages.encode_message(_add_nodes_to_notice(message, attempt.slots))
                ),
            )

    def stop(self, kill: bool) -> None:
        if (attempt := self._find_attempt()) is None:
            return
        first = kill and not attempt.is_kill_requested
        attempt.is_kill_requested = attempt.is_kill_requested or kill
        if attempt.is_placing:
            self._abandon_attempt(attempt)
            return
        for slot in attempt.slots:
            if not slot.is_stopped and not slot.is_lost:
                self._track_call(slot, slot.actor.stop.remote(self._token, kill))
        if first:
            self._loop.call_later(_STOP_TIMEOUT_S, self._call_safely, self._abandon_unstopped, attempt)

    def _abandon_unstopped(self, attempt: _ActorAttempt) -> None:
        """Stop waiting for actors whose workers should have ended."""
        for slot in attempt.slots:
            if not attempt.is_over and not slot.is_stopped and not slot.is_lost:
                self._create_task(
                    self._on_actor_lost, slot, TimeoutError(f"its worker did not end within {_STOP_TIMEOUT_S:g} s")
                )

    def _abandon_attempt(self, attempt: _ActorAttempt) -> asyncio.Task[None]:
        """End an attempt and release its actors and bundles, once. The next attempt gets new actors."""
        if attempt.end_task is None:
            attempt.end_task = self._create_task(self._release_attempt, attempt)
        return attempt.end_task

    async def _release_attempt(self, attempt: _ActorAttempt) -> None:
        assert attempt.start_task is not None
        if attempt.is_placing:
            attempt.is_placing = False
            attempt.start_task.cancel()
        await asyncio.wait([attempt.start_task])
        await self.actor_pool.release_all()
        self._finish_attempt(attempt)

    def _finish_attempt(self, attempt: _ActorAttempt) -> None:
        if not attempt.is_over:
            attempt.is_over = True
            self.is_waiting = False
            self._emit(WorkersStopped(attempt.group.attempt))

    async def _shut_down(self) -> None:
        if self._attempt is not None:
            self._attempt.is_over = True
            await asyncio.wait([self._abandon_attempt(self._attempt)])
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    # Output from actors, and the loss of actors

    async def _read_stream(self, slot: ActorSlot) -> None:
        """Read an actor's output for as long as it lives."""
        error: Exception = EOFError("its stream ended")
        try:
            async for ref in slot.actor.stream_output.options(num_returns="streaming").remote(self._token):
                self._handle_output(slot, await ref)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the stream is over
            error = problem
        await self._on_actor_lost(slot, error)

    def _handle_output(self, slot: ActorSlot, output: WorkerOutput) -> None:
        slot.pid = output.pid or slot.pid
        if output.log_data:
            append_to_log(slot.log, output.log_data)
        for payload in output.messages:
            message = messages.decode_from_worker(payload)
            slot.has_reported_end = slot.has_reported_end or isinstance(
                message, messages.WorkerReturned | messages.WorkerFailed
            )
            slot.last_seq = message.seq if isinstance(message, messages.Reported) else slot.last_seq
            self._emit(
                self._expand_to_node(slot, message)
                if isinstance(message, messages.PreemptionNoticeReceived)
                else message
            )
        if output.stopped_attempt is not None:
            self._on_worker_gone(slot)

    def _expand_to_node(
        self, slot: ActorSlot, notice: messages.PreemptionNoticeReceived
    ) -> messages.PreemptionNoticeReceived:
        """Extend a worker's preemption notice to all workers on its machine, and only those."""
        node = slot.placement.node_id
        slots = self._attempt.slots if self._attempt is not None else []
        ranks = tuple(each.rank for each in slots if each.placement.node_id == node)
        return replace(notice, ranks=ranks, includes_driver=node == self._driver)

    def _on_worker_gone(self, slot: ActorSlot) -> None:
        if slot.is_stopped or (attempt := self._find_attempt()) is None:
            return
        slot.is_stopped = True
        attempt.num_left -= 1
        if not attempt.num_left:
            self._finish_attempt(attempt)

    async def _on_actor_lost(self, slot: ActorSlot, error: Exception) -> None:
        """Handle the loss of an actor. The reason is known only once the cluster knows it."""
        at, attempt, was_lost = time.time(), self._find_attempt(), slot.is_lost
        slot.is_lost = True
        if was_lost or slot.is_stopped or attempt is None:
            return  # If it had no worker, the next group will simply get another actor.
        if isinstance(error, self._ray.exceptions.ActorUnavailableError):
            try:
                await self.actor_pool.query_placement(slot)
            except Exception as problem:  # noqa: BLE001 - reported below
                error = problem
        survey = await asyncio.to_thread(nodes.survey_cluster, self._ray)
        unsent = await asyncio.to_thread(read_unsent_reports, attempt.group.workers[slot.rank].begin, slot.last_seq)
        if not slot.is_working():
            return  # Released meanwhile, with all others.
        for message in unsent:
            self._emit(message)
        if not slot.has_reported_end:
            # Also while workers are being stopped: a stop ends workers, never actors, and this loss may be its reason.
            drained = slot.placement.node_id in self._draining
            failure = nodes.make_loss_failure(
                nodes.parse_loss(error), slot.rank, slot.placement, survey, drained=drained, at=at
            )
            self._emit(messages.WorkerFailed(attempt.group.attempt, slot.rank, failure))
        if not isinstance(error, self._ray.exceptions.ActorDiedError):
            self._ray.kill(slot.actor)  # An actor that cannot be heard must not keep running.
        self._on_worker_gone(slot)

    def _track_call(self, slot: ActorSlot, call: Awaitable[None]) -> None:
        """Treat an actor that raises in a call as failed; the stream reports one that is lost."""

        async def await_call() -> None:
            try:
                await call
            except self._ray.exceptions.RayTaskError as error:
                if not slot.is_lost:
                    await self._on_actor_lost(slot, error)
            except self._ray.exceptions.RayError:
                pass

        self._create_task(await_call)

    def _report_failure(
        self, attempt: _ActorAttempt, message: str, kind: messages.FailureKind = "engine", *, again: bool = True
    ) -> None:
        failure = messages.WorkerFailure(0, kind, message, at=time.time(), host=socket.gethostname(), retriable=again)
        self._emit(messages.WorkerFailed(attempt.group.attempt, 0, failure))

    def _on_engine_error(self, error: Exception) -> None:
        """The engine itself failed: end the attempt and release everything it holds."""
        if (attempt := self._find_attempt()) is None:
            return
        if not attempt.is_kill_requested:
            self._report_failure(attempt, f"the Ray engine failed: {nodes.summarize_error(error)}")
        attempt.is_kill_requested = True
        self._abandon_attempt(attempt)

    async def _watch_draining(self) -> None:
        is_failing = False
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            try:
                draining = await asyncio.to_thread(nodes.read_draining_nodes)
            except Exception as error:  # noqa: BLE001 - reported once; the run continues without notices
                if not is_failing:
                    self._notify_user(f"cannot list draining nodes: {nodes.summarize_error(error)}")
                is_failing = True
                continue
            is_failing = False
            self._draining |= draining
            if (attempt := self._find_attempt()) is None:
                continue
            places = [slot.placement.node_id for slot in attempt.slots]
            for notice in nodes.find_drain_notices(
                draining, attempt.notified_nodes, places, self._driver, time.time(), self._grace_s
            ):
                attempt.notified_nodes.add(notice.node_id)
                self._emit(
                    messages.PreemptionNoticeReceived(
                        attempt.group.attempt, notice.grace_s, notice.ranks, notice.includes_driver
                    )
                )


def _add_nodes_to_notice(message: ToWorker, slots: list[ActorSlot]) -> ToWorker:
    if not isinstance(message, messages.StopAt) or message.preemption is None:
        return message
    ranks_on: dict[str, list[int]] = {}
    for rank in message.preemption.ranks:
        ranks_on.setdefault(slots[rank].placement.node_id, []).append(rank)
    by_node = tuple((node, tuple(ranks)) for node, ranks in ranks_on.items())
    return replace(message, preemption=replace(message.preemption, nodes=by_node))
