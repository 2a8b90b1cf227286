"""The event loop that talks to the agents of a run, on a separate thread: it drives each attempt from placement to end.

It places the workers, has the agents start them, reads each agent's stream and watches for draining nodes. Any error
here is reported as an engine failure and ends the attempt, so nothing waits for a message that cannot come.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from paceline._core import settings
from paceline._engine import messages
from paceline._engine.base import WorkerGroupSpec, WorkerSpec
from paceline._engine.messages import FromWorker, ToWorker, WorkersStopped
from paceline._engine.ray import agent_links, nodes
from paceline._engine.ray.agent_links import AwakeClock, LinkState
from paceline._engine.ray.agent_pool import AgentPool, AgentSlot, InsufficientCapacity, WorkerSlot
from paceline._engine.ray.cluster_monitor import DaemonThreadExecutor
from paceline._engine.ray.connection import gcs_address
from paceline._engine.ray.node_agent import decode_output
from paceline._engine.ray.node_preparer import StartRefused
from paceline._engine.ray.placement import place_workers
from paceline._engine.ray.worker_files import append_to_log, read_unsent_reports

_STOP_TIMEOUT_S = 60.0
"""How long an agent may take to end its workers: longer than a cluster takes to detect a lost node."""
_WATCH_INTERVAL_S = 1.0
"""How often to check for draining nodes."""
_RECHECK_INTERVAL_S = 5.0
"""How often to try nodes that could not be reached."""
_HOLD_PER_AGENT_S = 0.02
"""How long plain reports wait for others: up to 100 agents together send about 50 items a second."""
_MAX_HOLD_S = 2.0

T = TypeVar("T")


@dataclass(eq=False)
class _AgentAttempt:
    """The workers of one group, from `start` to `WorkersStopped`."""

    group: WorkerGroupSpec
    start_task: asyncio.Task[None] | None = None
    end_task: asyncio.Task[None] | None = None
    is_placing: bool = True
    """Its workers are being placed, which can still be cancelled."""
    slots: list[WorkerSlot] = field(default_factory=list)
    """In rank order; empty until the workers are started."""
    agents: list[AgentSlot] = field(default_factory=list)
    """Those that have workers."""
    num_left: int = 0
    """How many of the agents have workers left."""
    is_kill_requested: bool = False
    is_over: bool = False
    unsent: list[tuple[int, ToWorker]] = field(default_factory=list)
    """Messages sent before the workers were started."""
    notified_nodes: set[str] = field(default_factory=set)
    """Draining nodes that the workers have been notified about."""


class AgentEventLoop:
    def __init__(
        self,
        ray: Any,
        agent_pool: AgentPool,
        emit: Callable[[list[FromWorker | WorkersStopped]], None],
        say: Callable[[str], None],
        *,
        is_movable: bool = False,
    ) -> None:
        """`emit` receives messages for the controller, `say` messages for the user.

        `is_movable`: this process is restarted elsewhere when its node is taken away, so the run continues.
        """
        self._ray = ray
        self.agent_pool = agent_pool
        self._token = agent_pool.token
        self._emit_all = emit
        self._notify_user = say
        self.is_waiting = False
        """Waiting for capacity: no worker has been started."""
        self._attempt: _AgentAttempt | None = None
        self._driver = "" if is_movable else ray.get_runtime_context().get_node_id()
        self._grace_s = settings.load().preemption_grace_s
        self._node_patience_s = settings.load().node_patience_s
        self._awake_clock = AwakeClock()
        self._draining: dict[str, float] = {}
        """All nodes ever seen draining."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_watching = False
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._are_calls_due = False
        self._last_encoded: tuple[ToWorker | None, bytes] = (None, b"")
        """A message to many ranks is encoded once."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(DaemonThreadExecutor())
        self._thread = threading.Thread(target=self._loop.run_forever, name="paceline-ray", daemon=True)
        self._thread.start()

    # Called from the controller's thread

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a method of this object, such as `start`, on its own thread. Calls are made in order."""
        self._calls.append((call, arguments))
        if not self._are_calls_due:
            self._are_calls_due = True
            self._loop.call_soon_threadsafe(self._make_calls)

    def find_slot(self, rank: int) -> WorkerSlot | None:
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

    def _find_attempt(self) -> _AgentAttempt | None:
        return None if self._attempt is None or self._attempt.is_over else self._attempt

    def _make_calls(self) -> None:
        self._are_calls_due = False  # First: what is called for from now on may come too late for the loop below.
        while self._calls:
            call, arguments = self._calls.popleft()
            self._call_safely(call, *arguments)
        self._call_safely(self._send_outboxes)

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
            self._create_task(self._watch_links)
        self._attempt = attempt = _AgentAttempt(group)
        attempt.start_task = self._create_task(self._start_attempt, attempt)

    async def _start_attempt(self, attempt: _AgentAttempt) -> None:
        group = attempt.group
        # Modules to preload in the zygote before workers start; spawned workers import their own.
        preload = group.preload if group.start_method == "fork" else ()
        try:
            job = await asyncio.to_thread(self._ray.put, group.job)
            read = partial(self._create_task, self._read_stream)
            slots = await self.agent_pool.place_workers(len(group.workers), preload, read)
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
                await self.agent_pool.release_all()
            self._finish_attempt(attempt)

    def _launch(self, attempt: _AgentAttempt, slots: list[WorkerSlot], job: Any) -> None:
        address = gcs_address()
        group = attempt.group
        placed = place_workers(group.workers, [slot.placement for slot in slots], self.agent_pool.placement_spec)
        specs: dict[AgentSlot, list[WorkerSpec]] = {slot.agent: [] for slot in slots}
        for agent in specs:
            agent.workers, agent.outbox, agent.is_stopped = {}, [], False
            agent.link.hear(self._awake_clock.elapsed_s)
        for rank, (slot, spec) in enumerate(zip(slots, placed, strict=True)):
            spec.env.setdefault("RAY_ADDRESS", address)
            slot.rank, slot.log = rank, spec.log
            slot.agent.workers[rank] = slot
            specs[slot.agent].append(spec)
        hold_s = min(_MAX_HOLD_S, _HOLD_PER_AGENT_S * len(specs))
        for agent, workers in specs.items():
            group_on_node = dataclasses.replace(group, workers=tuple(workers), job=b"")
            self._track_call(agent, agent.actor.start.remote(self._token, group_on_node, job, hold_s))
        attempt.is_placing = self.is_waiting = False
        attempt.slots, attempt.agents, attempt.num_left = slots, list(specs), len(specs)
        for rank, message in attempt.unsent:
            self.send(rank, message)
        self._send_outboxes()

    def send(self, rank: int, message: ToWorker) -> None:
        if (attempt := self._find_attempt()) is None:
            return
        if attempt.is_placing:
            attempt.unsent.append((rank, message))
            return
        slot = self.find_slot(rank)
        if slot is None or slot.agent.is_stopped or slot.agent.is_lost:
            return
        if message is not self._last_encoded[0]:
            self._last_encoded = message, messages.encode_message(_add_nodes_to_notice(message, attempt.slots))
        payload, outbox = self._last_encoded[1], slot.agent.outbox
        if outbox and outbox[-1][1] is payload:
            outbox[-1][0].append(rank)
        else:
            outbox.append(([rank], payload))

    def _send_outboxes(self) -> None:
        for agent in self._list_working_agents():
            if agent.outbox:
                outbox, agent.outbox = agent.outbox, []
                self._track_call(agent, agent.actor.send.remote(self._token, outbox))

    def _list_working_agents(self) -> list[AgentSlot]:
        attempt = self._find_attempt()
        agents = attempt.agents if attempt is not None else []
        return [agent for agent in agents if not agent.is_stopped and not agent.is_lost]

    def stop(self, kill: bool) -> None:
        if (attempt := self._find_attempt()) is None:
            return
        first = kill and not attempt.is_kill_requested
        attempt.is_kill_requested = attempt.is_kill_requested or kill
        if attempt.is_placing:
            self._abandon_attempt(attempt)
            return
        self._send_outboxes()
        for agent in self._list_working_agents():
            self._track_call(agent, agent.actor.stop.remote(self._token, kill))
        if first:
            self._loop.call_later(_STOP_TIMEOUT_S, self._call_safely, self._abandon_unstopped, attempt)

    def _abandon_unstopped(self, attempt: _AgentAttempt) -> None:
        """Stop waiting for agents whose workers should have ended."""
        for agent in attempt.agents:
            if not attempt.is_over and not agent.is_stopped and not agent.is_lost:
                self._create_task(
                    self._on_agent_lost, agent, TimeoutError(f"its workers did not end within {_STOP_TIMEOUT_S:g} s")
                )

    def _abandon_attempt(self, attempt: _AgentAttempt, *, keep_agents: bool = False) -> asyncio.Task[None]:
        """End an attempt and release its agents and bundles, once. The next attempt gets new ones."""
        if attempt.end_task is None:
            release = partial(self._release_attempt, keep_agents=keep_agents)
            attempt.end_task = self._create_task(release, attempt)
        return attempt.end_task

    async def _release_attempt(self, attempt: _AgentAttempt, *, keep_agents: bool = False) -> None:
        assert attempt.start_task is not None
        if attempt.is_placing:
            attempt.is_placing = False
            attempt.start_task.cancel()
        await asyncio.wait([attempt.start_task])
        await self.agent_pool.release_all(keep_agents=keep_agents)
        self._finish_attempt(attempt)

    def _finish_attempt(self, attempt: _AgentAttempt) -> None:
        if not attempt.is_over:
            attempt.is_over = True
            self.is_waiting = False
            self._emit(WorkersStopped(attempt.group.attempt))

    async def _shut_down(self) -> None:
        if self._attempt is not None:
            self._attempt.is_over = True
            await asyncio.wait([self._abandon_attempt(self._attempt, keep_agents=True)])
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    # Output from agents, and the loss of agents

    def _emit(self, message: FromWorker | WorkersStopped) -> None:
        self._emit_all([message])

    async def _read_stream(self, agent: AgentSlot) -> None:
        """Read an agent's output for as long as it lives."""
        error: Exception = EOFError("its stream ended")
        try:
            async for ref in agent.actor.stream_output.options(num_returns="streaming").remote(self._token):
                self._handle_output(agent, await ref)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the stream is over
            error = problem
        await self._on_agent_lost(agent, error)

    def _handle_output(self, agent: AgentSlot, data: bytes) -> None:
        self._on_agent_heard(agent)
        output = decode_output(data)
        for rank, pid in output.pids:
            agent.workers[rank].pid = pid
        for rank, log_data in output.logs:
            append_to_log(agent.workers[rank].log, log_data)
        received: list[FromWorker | WorkersStopped] = []
        for payload in output.messages:
            message = messages.decode_from_worker(payload)
            if type(message) is messages.Reported:  # Nearly all are.
                agent.workers[message.rank].last_seq = message.seq
            elif isinstance(message, messages.WorkerReturned | messages.WorkerFailed):
                agent.workers[message.rank].has_reported_end = True
            elif isinstance(message, messages.PreemptionNoticeReceived):
                # It is for all workers on its machine, and only those.
                is_drivers = agent.placement.node_id == self._driver
                message = replace(message, ranks=tuple(agent.workers), includes_driver=is_drivers)
            received.append(message)
        self._emit_all(received)
        if output.stopped_attempt is not None:
            self._on_workers_gone(agent)

    def _on_workers_gone(self, agent: AgentSlot) -> None:
        if agent.is_stopped or (attempt := self._find_attempt()) is None:
            return
        agent.is_stopped = True
        attempt.num_left -= 1
        if not attempt.num_left:
            self._finish_attempt(attempt)

    async def _on_agent_lost(self, agent: AgentSlot, error: Exception) -> None:
        """Handle the loss of an agent with its workers. The reason is known only once the cluster knows it."""
        at, attempt, was_lost = time.time(), self._find_attempt(), agent.is_lost
        agent.is_lost = True
        if was_lost or agent.is_stopped or attempt is None:
            return  # If it had no workers, the next group will simply get another agent.
        if isinstance(error, self._ray.exceptions.ActorUnavailableError):
            try:
                await self.agent_pool.query_placement(agent)
            except Exception as problem:  # noqa: BLE001 - reported below
                error = problem
        if not isinstance(error, self._ray.exceptions.ActorDiedError):
            await self.agent_pool.check_reachable(agent.placement.node_id)  # The next group must not be placed there.
        survey = await asyncio.to_thread(nodes.survey_cluster, self._ray)
        workers = attempt.group.workers
        unsent = await asyncio.to_thread(
            lambda: [read_unsent_reports(workers[rank].begin, each.last_seq) for rank, each in agent.workers.items()]
        )
        if not agent.is_working():
            return  # Released meanwhile, with all others.
        loss, drained = nodes.parse_loss(error), agent.placement.node_id in self._draining
        for (rank, worker), reports in zip(agent.workers.items(), unsent, strict=True):
            self._emit_all([*reports])
            if not worker.has_reported_end:
                # Also while workers are being stopped: a stop ends workers, never agents, and this loss may be its
                # reason.
                failure = nodes.make_loss_failure(loss, rank, agent.placement, survey, drained=drained, at=at)
                self._emit(messages.WorkerFailed(attempt.group.attempt, rank, failure))
        if not isinstance(error, self._ray.exceptions.ActorDiedError):
            self._ray.kill(agent.actor)  # An agent that cannot be heard must not keep running.
        self._on_workers_gone(agent)

    def _track_call(self, agent: AgentSlot, call: Awaitable[None]) -> None:
        """Treat an agent that raises in a call as failed; the stream reports one that is lost."""

        async def await_call() -> None:
            try:
                await call
            except self._ray.exceptions.RayTaskError as error:
                if not agent.is_lost:
                    await self._on_agent_lost(agent, error)
            except self._ray.exceptions.RayError:
                pass

        self._create_task(await_call)

    def _report_failure(
        self, attempt: _AgentAttempt, message: str, kind: messages.FailureKind = "engine", *, again: bool = True
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

    # The links to agents

    async def _watch_links(self) -> None:
        checked_at, next_recheck_at, recheck = time.monotonic(), 0.0, None
        while True:
            await asyncio.sleep(agent_links.CHECK_INTERVAL_S)
            now = time.monotonic()
            self._awake_clock.advance(now - checked_at)
            checked_at = now
            for agent in self._list_working_agents():
                self._check_link(agent)
            if now >= next_recheck_at and (recheck is None or recheck.done()):
                recheck = self._create_task(self.agent_pool.check_unreachable)
                next_recheck_at = now + _RECHECK_INTERVAL_S

    def _check_link(self, agent: AgentSlot) -> None:
        link = agent.link
        silence_s = self._awake_clock.elapsed_s - link.heard_at
        if silence_s >= agent_links.PING_AFTER_S and not link.is_pinged:
            link.is_pinged = True
            self._create_task(self._ping, agent)
        decision = self._decide_next(link, is_reachable=None)
        if decision == "report":
            link.is_reported = True
            self._notify_user(
                agent_links.format_silence(agent.placement, sorted(agent.workers), silence_s, self._node_patience_s)
            )
        elif decision == "probe" and not link.is_probed:
            link.is_probed = True
            self._create_task(self._probe_host, agent)
        elif decision == "give up":
            self._give_up(agent)

    def _decide_next(self, link: LinkState, *, is_reachable: bool | None) -> agent_links.Decision:
        silence_s = self._awake_clock.elapsed_s - link.heard_at
        return agent_links.decide_next(
            silence_s, self._node_patience_s, is_reported=link.is_reported, is_reachable=is_reachable
        )

    async def _probe_host(self, agent: AgentSlot) -> None:
        try:
            is_reachable = await self.agent_pool.check_reachable(agent.placement.node_id)
        finally:
            agent.link.is_probed = False
        if self._decide_next(agent.link, is_reachable=is_reachable) == "give up":  # It may have answered meanwhile.
            self._give_up(agent)

    def _give_up(self, agent: AgentSlot) -> None:
        silence_s = self._awake_clock.elapsed_s - agent.link.heard_at
        error = agent_links.AgentSilentError(agent_links.format_given_up(agent.placement, silence_s))
        self._create_task(self._on_agent_lost, agent, error)

    async def _ping(self, agent: AgentSlot) -> None:
        try:
            await agent.actor.ping.remote(self._token)
            self._on_agent_heard(agent)
        except self._ray.exceptions.RayError:
            pass  # No answer is no sign of life; the stream reports an agent that is lost.
        finally:
            agent.link.is_pinged = False

    def _on_agent_heard(self, agent: AgentSlot) -> None:
        silence_s = agent.link.hear(self._awake_clock.elapsed_s)
        if silence_s is not None and not agent.is_lost:
            self._notify_user(agent_links.format_return(agent.placement, silence_s))

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


def _add_nodes_to_notice(message: ToWorker, slots: list[WorkerSlot]) -> ToWorker:
    if not isinstance(message, messages.StopAt) or message.preemption is None:
        return message
    ranks_on: dict[str, list[int]] = {}
    for rank in message.preemption.ranks:
        ranks_on.setdefault(slots[rank].placement.node_id, []).append(rank)
    by_node = tuple((node, tuple(ranks)) for node, ranks in ranks_on.items())
    return replace(message, preemption=replace(message.preemption, nodes=by_node))
