"""The engine that runs workers on a Ray cluster: a placement group with one bundle per worker, and one agent per node.

This is the side that the controller sees. An `AgentEventLoop` on a separate thread talks to the agents; what it
receives goes into a queue that `wait` drains.
"""

from __future__ import annotations

import secrets
import select
from collections import deque
from collections.abc import Callable
from functools import partial

from paceline._core.system import ProcessStatus
from paceline._engine.base import WakeSocket, WorkerGroupSpec, WorkerResources
from paceline._engine.messages import FromWorker, ToWorker, WorkersStopped
from paceline._engine.ray.agent_event_loop import AgentEventLoop
from paceline._engine.ray.agent_pool import AgentPool
from paceline._engine.ray.cluster_capacity import compute_cluster_capacity
from paceline._engine.ray.connection import connect_to_cluster
from paceline._engine.ray.node_preparer import NodePreparer
from paceline._engine.ray.nodes import read_cluster
from paceline._engine.ray.placement import PlacementSpec

_ASK_TIMEOUT_S = 2.0


class RayEngine:
    def __init__(
        self,
        placement_spec: PlacementSpec,
        say: Callable[[str], None] = lambda _: None,
        address: str | None = None,
        *,
        node_preparer: NodePreparer | None = None,
        least: int | None = None,
        most: int | None = None,
        is_movable: bool = False,
    ) -> None:
        """`say` gets messages about what the engine waits for; `address` is the cluster's, if Ray is not initialised.

        `least`: the fewest workers the run can use, if that is fewer than it may have. Then a group that no longer fits
        fails; otherwise it waits. `most`: the run never uses more workers, even if they fit. `is_movable`: see
        `AgentEventLoop`.
        """
        self._ray = connect_to_cluster(address)
        self._placement_spec = placement_spec
        self._token = secrets.token_hex(16)
        self._messages: deque[FromWorker | WorkersStopped] = deque()
        self._wake_socket = WakeSocket()
        self._news = select.poll()  # `select.select` fails for descriptors above 1,023
        self._news.register(self._wake_socket.receiver, select.POLLIN)
        self._running = False
        self._least = least
        self._most = most
        self._num_places = 0
        query_capacity = self._query_capacity if least is not None else None
        preparer = node_preparer or NodePreparer()
        agent_pool = AgentPool(self._ray, placement_spec, preparer, self._token, say, query_capacity)
        self._event_loop = AgentEventLoop(self._ray, agent_pool, self._enqueue, say, is_movable=is_movable)

    def capacity(self, needs: WorkerResources, least: int, most: int) -> int:
        """Compute capacity from the full request of each worker, of which `needs` is only a part."""
        most = min(most, self._most or most)
        try:
            query = partial(self._query_capacity, most, least)
            self._num_places = self._event_loop.run_blocking(query, _ASK_TIMEOUT_S)
        except (self._ray.exceptions.RayError, TimeoutError):
            pass  # A head that does not answer does not reduce the capacity.
        return self._num_places

    @property
    def waits(self) -> bool:
        return self._event_loop.is_waiting

    def list_nodes(self) -> list[str]:
        """Return the node of each placed worker. May query the cluster. Callable from any thread."""
        agent_pool = self._event_loop.agent_pool
        return agent_pool.list_nodes() or list(agent_pool.count_held_bundles().elements())

    def start(self, group: WorkerGroupSpec) -> None:
        assert not self._running, "the workers of the last attempt have not been stopped"
        self._running = self._event_loop.is_waiting = True
        self._event_loop.call_soon(self._event_loop.start, group)

    def send(self, rank: int, message: ToWorker) -> None:
        self._event_loop.call_soon(self._event_loop.send, rank, message)

    def stop(self, *, kill: bool) -> None:
        self._event_loop.call_soon(self._event_loop.stop, kill)

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        if not self._messages:
            self._news.poll(None if timeout_s is None else timeout_s * 1000)
        self._wake_socket.drain()
        messages: list[FromWorker | WorkersStopped] = []
        while self._messages:
            messages.append(self._messages.popleft())
            self._running = self._running and not isinstance(messages[-1], WorkersStopped)
        return messages

    def condition(self, rank: int) -> ProcessStatus | None:
        slot = self._event_loop.find_slot(rank)
        if slot is None or slot.agent.is_lost:
            return None  # The stream reports a lost agent.
        try:
            call = slot.agent.actor.condition.remote(self._token, rank)
            status: ProcessStatus | None = self._ray.get(call, timeout=_ASK_TIMEOUT_S)
        except (self._ray.exceptions.RayError, TimeoutError):
            return ProcessStatus(is_host_silent=True)
        return status

    def pid(self, rank: int) -> int:
        """Return the pid of a rank on its own machine; 0 if it is not known yet."""
        slot = self._event_loop.find_slot(rank)
        return slot.pid if slot is not None else 0

    def signal(self, rank: int, signum: int) -> None:
        """Send a signal to the process of a rank, for tests."""
        slot = self._event_loop.find_slot(rank)
        if slot is not None:
            self._ray.get(slot.agent.actor.signal.remote(self._token, rank, signum), timeout=_ASK_TIMEOUT_S)

    def wake(self) -> None:
        self._wake_socket.wake()

    def close(self) -> None:
        self._event_loop.close()
        self._wake_socket.close()

    def _enqueue(self, messages: list[FromWorker | WorkersStopped]) -> None:
        self._messages.extend(messages)
        self.wake()

    def _query_capacity(self, most: int, least: int | None = None) -> int:
        agent_pool = self._event_loop.agent_pool
        held, cluster = agent_pool.count_held_bundles(), read_cluster(without=agent_pool.list_unreachable())
        least = least or self._least or most
        return compute_cluster_capacity(self._placement_spec, cluster, held, least, most)
