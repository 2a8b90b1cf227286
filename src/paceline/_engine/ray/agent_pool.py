"""The bundles of a run on the cluster, one per worker, and an agent on each of their nodes, kept between attempts.

The placement group reserves resources for the workers; an agent requests none, so it can outlive the group, and the run
itself (see `idle_agents`). When a node is lost, Ray reschedules its bundles as soon as there is capacity, on nodes that
may have an agent already. A group of fewer workers uses the bundles that are left. If these do not suffice, or a node
is draining, the group is placed anew. Nodes that the driver cannot reach are avoided until it can.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from paceline._engine.ray.agent_links import NOTICE_AFTER_S, AgentSilentError, LinkState, can_connect
from paceline._engine.ray.cluster_capacity import describe_wait
from paceline._engine.ray.idle_agents import AgentKey, IdleAgent, idle_agents
from paceline._engine.ray.node_agent import ActorPlacement, NodeAgent
from paceline._engine.ray.node_preparer import NodePreparer
from paceline._engine.ray.nodes import ClusterSurvey, NodeStatus, read_cluster, summarize_error, survey_cluster
from paceline._engine.ray.placement import PlacementSpec, order_ranks

_CLOSE_TIMEOUT_S = 5.0
"""How long to wait for the actors to end."""
_CLOSE_TIMEOUT_PER_ACTOR_S = 0.01
_POLL_S = 0.2
_UNREACHABLE_TIMEOUT_S = 60.0
"""How long to retry an actor that cannot be reached, until the cluster says what happened to it."""
_CAPACITY_POLL_S = 1.0
_MESSAGE_INTERVAL_S = 30.0

UNPLACED = ActorPlacement("", "", "", 0, 1)


T = TypeVar("T")


@dataclass(eq=False)
class AgentSlot:
    """One agent, its placement, and the state of its workers."""

    actor: Any
    bundle: int
    """One of those on its node."""
    idle_token: str = ""
    """What it expects from the run that takes it over; empty if it is new."""
    placement: ActorPlacement = UNPLACED
    workers: dict[int, WorkerSlot] = field(default_factory=dict)
    """Of the last attempt, by rank."""
    outbox: list[tuple[list[int], bytes]] = field(default_factory=list)
    """Messages to its workers, each with the ranks that it is for."""
    is_stopped: bool = True
    """No worker of it is left."""
    is_lost: bool = False
    """No more output will come from it."""
    stream_task: asyncio.Task[None] | None = None
    link: LinkState = field(default_factory=LinkState)

    def is_working(self) -> bool:
        """Asked after an await: a type checker would take the attribute for unchanged."""
        return not self.is_stopped


@dataclass(eq=False)
class WorkerSlot:
    """The placement of one worker in one attempt, and the state of the worker."""

    agent: AgentSlot
    placement: ActorPlacement
    rank: int = -1
    pid: int = 0
    log: Path = Path()
    last_seq: int = 0
    has_reported_end: bool = False
    """It has reported that it returned or failed, so its exit adds nothing."""


@dataclass
class _PlacementWait:
    """State of waiting for a placement: when to check capacity next, and when to print the next message."""

    size: int
    next_check_at: float = field(default_factory=lambda: time.monotonic() + _CAPACITY_POLL_S)
    next_message_at: float = 0.0


StreamListener = Callable[[AgentSlot], asyncio.Task[None]]


class InsufficientCapacity(Exception):
    """Fewer workers fit than were requested, and the run can continue with fewer."""


def choose_bundles(
    size: int, placed: Mapping[int, str], warm: Collection[str], survey: ClusterSurvey
) -> list[int] | Literal["wait", "anew"]:
    """Choose the bundles for `size` workers, or whether to wait for them or to place the group anew.

    `placed` maps each bundle of the placement group to its node; `warm` are the nodes that have an agent.
    """
    usable = [bundle for bundle, node in placed.items() if survey.is_usable(node)]
    if len(usable) >= size:
        warm_first = sorted(usable, key=lambda bundle: (placed[bundle] not in warm, bundle))
        return sorted(warm_first[:size])
    # Bundles on a node that is draining, or that only the driver cannot reach, are not moved until it is gone.
    if len(placed) == size and not any(map(survey.is_avoided, placed.values())):
        return "wait"
    return "anew"


class AgentPool:
    def __init__(
        self,
        ray: Any,
        placement_spec: PlacementSpec,
        node_preparer: NodePreparer,
        token: str,
        say: Callable[[str], None],
        query_capacity: Callable[[int], int] | None = None,
    ) -> None:
        """`query_capacity` returns how many of so many workers fit now; None if the run cannot continue with fewer."""
        self._ray = ray
        self.placement_spec = placement_spec
        self.token = token
        self._node_preparer = node_preparer
        self._notify_user = say
        self._query_capacity = query_capacity
        self._driver_node = ray.get_runtime_context().get_node_id()
        self._group: Any = None
        self._total = 0
        self._placed: dict[int, str] = {}
        """The node of each bundle, when that was last asked."""
        self._agents: dict[str, AgentSlot] = {}
        """By node."""
        self._devices: dict[int, tuple[str, tuple[str, ...]]] = {}
        """The GPUs of bundles, and the node that these are on."""
        self._job_id = str(ray.get_runtime_context().get_job_id())
        self._unreachable: dict[str, NodeStatus] = {}
        """Nodes that this process cannot connect to, though the cluster's head can."""
        self._avoided: frozenset[str] = frozenset()
        """Those that the placement group was told to avoid."""

    async def place_workers(self, size: int, preload: tuple[str, ...], listen: StreamListener) -> list[WorkerSlot]:
        """Return a slot for each of `size` workers, in rank order; `listen` starts to read the stream of an agent."""
        wait = _PlacementWait(size)
        while True:
            if self._group is None or self._total < size:
                await self._release_group()
                self._create_placement_group(size)
            survey, placed = await asyncio.to_thread(
                lambda: (survey_cluster(self._ray, self.list_unreachable()), self._bundle_nodes(self._group))
            )
            self._placed = placed
            self._forget_dead_nodes(survey)
            await self._release_lost(survey)
            bundles = choose_bundles(size, placed, self._agents, survey)
            # A group that still waits may also use the nodes that can be reached again.
            if bundles == "anew" or (bundles == "wait" and not self._avoided <= survey.unreachable):
                await self._release_group()
            elif bundles == "wait":
                await self._wait_for_bundles(wait)
            elif await self._staff_nodes(bundles, preload, listen):
                slots = [self._make_worker_slot(bundle) for bundle in bundles]
                return [slots[index] for index in order_ranks([slot.placement for slot in slots], self._driver_node)]

    def list_unreachable(self) -> frozenset[str]:
        """Return the nodes on which no workers should be placed now. Callable from any thread."""
        return frozenset(self._unreachable)

    async def check_reachable(self, node_id: str) -> bool:
        """Return whether a node accepts connections from here; if not, avoid it until it does."""
        survey = await asyncio.to_thread(survey_cluster, self._ray)
        node = survey.nodes.get(node_id)
        if node is None or not node.is_alive:
            return False  # The cluster will report it.
        is_reachable = await asyncio.to_thread(can_connect, node.address, node.port)
        if not is_reachable and node_id not in self._unreachable:
            self._unreachable[node_id] = node
            self._notify_user(
                f"cannot connect to node {node.address} ({node_id}): no workers are placed there until it answers"
            )
        return is_reachable

    def _forget_dead_nodes(self, survey: ClusterSurvey) -> None:
        for node_id in self.list_unreachable():
            if node_id not in survey.nodes or not survey.nodes[node_id].is_alive:
                del self._unreachable[node_id]

    async def check_unreachable(self) -> None:
        """Forget the nodes that accept connections again."""
        for node_id, node in list(self._unreachable.items()):
            if await asyncio.to_thread(can_connect, node.address, node.port):
                self._unreachable.pop(node_id, None)
                self._notify_user(f"node {node.address} ({node_id}) can be reached again")

    def count_held_bundles(self) -> Counter[str]:
        """Count the bundles held on each node. Callable from any thread."""
        group = self._group
        return Counter() if group is None else Counter(filter(None, self._bundle_nodes(group).values()))

    def list_nodes(self) -> list[str]:
        """Return the node of each bundle that has an agent known to have started. Callable from any thread."""
        staffed = {node for node, agent in list(self._agents.items()) if agent.placement.node_id and not agent.is_lost}
        return [node for node in self._placed.values() if node in staffed]

    async def release_all(self, *, keep_agents: bool = False) -> None:
        """Release the bundles and the agents; `keep_agents`: those without workers may serve the next run."""
        agents, self._agents = self._agents, {}
        kept = await self._park(agents) if keep_agents else []
        await self._release([agent for agent in agents.values() if agent not in kept])
        await self._release_group()

    async def _release_group(self) -> None:
        """Release the bundles; agents stay."""
        group, self._group, self._total = self._group, None, 0
        self._placed, self._devices = {}, {}
        if group is not None:
            await self._call_cluster(lambda: self._ray.util.remove_placement_group(group), "bundles", _CLOSE_TIMEOUT_S)

    async def _release_lost(self, survey: ClusterSurvey) -> None:
        """Release agents that are lost, or whose node is gone or draining."""
        released = {node: agent for node, agent in self._agents.items() if agent.is_lost or not survey.is_usable(node)}
        for node in released:
            del self._agents[node]
        await self._release([*released.values()])

    async def _release(self, agents: Sequence[AgentSlot]) -> None:
        for agent in agents:
            agent.is_lost = agent.is_stopped = True
        if self._ray.is_initialized():  # Otherwise they went with the connection.
            await self._kill_actors([agent.actor for agent in agents])
            await self._wait_for_streams(agents)

    async def _kill_actors(self, actors: Sequence[Any]) -> None:
        def kill_all() -> None:
            for actor in actors:
                self._ray.kill(actor)

        if actors:
            await self._call_cluster(kill_all, "agents", _CLOSE_TIMEOUT_S + _CLOSE_TIMEOUT_PER_ACTOR_S * len(actors))

    async def _park(self, agents: Mapping[str, AgentSlot]) -> list[AgentSlot]:
        """Keep agents for the next run of this process, and return them."""
        candidates = [
            (node, agent)
            for node, agent in agents.items()
            if agent.is_stopped and not agent.is_lost and agent.stream_task is not None
        ]
        if not candidates or not self._ray.is_initialized():
            return []
        for _, agent in candidates:
            agent.is_lost = True  # Nothing more of it concerns this run.
        tokens = [secrets.token_hex(16) for _ in candidates]
        calls = (
            agent.actor.park.remote(self.token, token) for (_, agent), token in zip(candidates, tokens, strict=True)
        )
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                answers = await asyncio.gather(*calls, return_exceptions=True)
        except TimeoutError:
            return []
        parked, excess = [], []
        for (node, agent), token, answer in zip(candidates, tokens, answers, strict=True):
            if answer is None:
                excess += idle_agents.add(IdleAgent(self._make_key(node), agent.actor, token))
                parked.append(agent)
        await self._kill_actors([agent.actor for agent in excess])
        await self._wait_for_streams(parked)
        return parked

    def _make_key(self, node_id: str) -> AgentKey:
        return AgentKey(
            self._job_id, node_id, self._node_preparer.encoded_config, repr(self._node_preparer.actor_options)
        )

    async def _call_cluster(self, call: Callable[[], None], what: str, timeout_s: float) -> None:
        if not self._ray.is_initialized():
            return  # Nothing is left to release: it went with the connection.
        try:
            # Not wait_for, which may lose a cancellation before Python 3.12.
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(call)
        except Exception as problem:  # noqa: BLE001 - reported only: nothing of the run depends on it
            self._notify_user(f"cannot release {what} of the run: {summarize_error(problem)}")

    @staticmethod
    async def _wait_for_streams(agents: Sequence[AgentSlot]) -> None:
        stream_tasks = [agent.stream_task for agent in agents if agent.stream_task is not None]
        if stream_tasks:
            timeout_s = _CLOSE_TIMEOUT_S + _CLOSE_TIMEOUT_PER_ACTOR_S * len(agents)
            await asyncio.wait(stream_tasks, timeout=timeout_s)

    def _create_placement_group(self, size: int) -> None:
        labels: dict[str, Any] = {}
        self._avoided = self.list_unreachable()
        if self.placement_spec.label_selector or self._avoided:
            labels["bundle_label_selector"] = self.placement_spec.bundle_selectors_without(size, self._avoided)
        bundles = [self.placement_spec.bundle] * size
        self._group = self._ray.util.placement_group(bundles, strategy=self.placement_spec.strategy, **labels)
        self._total = size

    async def _wait_for_bundles(self, wait: _PlacementWait) -> None:
        """Wait a moment for bundles; notify the user if it takes long."""
        began = time.monotonic()
        await asyncio.to_thread(self._group.wait, _POLL_S)
        now = time.monotonic()
        if now - began < _POLL_S / 10:
            await asyncio.sleep(_POLL_S / 10)  # The group was placed once and is not now, so its wait returns at once.
        if now < wait.next_check_at:
            return
        wait.next_check_at = now + _CAPACITY_POLL_S
        num_fitting = (
            await asyncio.to_thread(self._query_capacity, wait.size) if self._query_capacity is not None else wait.size
        )
        if num_fitting < wait.size:
            raise InsufficientCapacity(f"only {num_fitting} of {wait.size} workers fit")
        if now >= wait.next_message_at:
            wait.next_message_at = now + _MESSAGE_INTERVAL_S
            cluster, held = await asyncio.to_thread(
                lambda: (read_cluster(without=self.list_unreachable()), self.count_held_bundles())
            )
            self._notify_user(describe_wait(self.placement_spec, wait.size, cluster, held))

    async def _staff_nodes(self, bundles: Sequence[int], preload: tuple[str, ...], listen: StreamListener) -> bool:
        """Create agents on the nodes of these bundles that have none, and find the devices of the bundles.

        Return False if some bundles were lost or have moved, along with their nodes.
        """
        placed = self._placed
        first = {node: bundle for bundle in reversed(bundles) if (node := placed[bundle]) not in self._agents}
        new = {node: self._take_agent(node, bundle, preload) for node, bundle in first.items()}
        self._agents |= new  # Recorded now, so that they are released whatever happens.
        unknown = [bundle for bundle in bundles if not self._has_known_devices(bundle)]
        placements, devices = await asyncio.gather(
            _gather_answers([self._query_new_agent(agent, node, preload) for node, agent in new.items()]),
            _gather_answers([self._query_devices(bundle) for bundle in unknown]),
        )
        problems: list[tuple[int, BaseException]] = []
        for agent, placement in zip(new.values(), placements, strict=True):
            if isinstance(placement, BaseException):
                problems.append((agent.bundle, placement))
            elif placement.node_id == placed[agent.bundle]:
                agent.placement = placement
            agent.is_lost = agent.placement is UNPLACED
        for bundle, answer in zip(unknown, devices, strict=True):
            if isinstance(answer, BaseException):
                problems.append((bundle, answer))
            else:
                self._devices[bundle] = answer
        if problems:
            survey = await asyncio.to_thread(survey_cluster, self._ray, self.list_unreachable())
            for bundle, problem in problems:
                if survey.is_usable(placed[bundle]):
                    raise await self._explain_failure(problem, bundle)
        started = [agent for agent in new.values() if not agent.is_lost]
        await self._node_preparer.check_actors(self.token, [(agent.actor, agent.placement) for agent in started])
        for agent in started:
            agent.stream_task = listen(agent)
        lost = [bundle for bundle in bundles if self._agents[placed[bundle]].is_lost]
        return not lost and all(map(self._has_known_devices, bundles))

    def _has_known_devices(self, bundle: int) -> bool:
        """Whether the GPUs of a bundle are known."""
        if not self.placement_spec.bundle.get("GPU"):
            return True
        return bundle in self._devices and self._devices[bundle][0] == self._placed[bundle]

    def _make_worker_slot(self, bundle: int) -> WorkerSlot:
        agent = self._agents[self._placed[bundle]]
        _, gpus = self._devices.get(bundle, ("", ()))
        return WorkerSlot(agent, replace(agent.placement, gpus=gpus))

    async def _explain_failure(self, problem: BaseException, bundle: int) -> BaseException:
        """Return the error to raise: a `StartRefused` if the actor would fail the same way next time."""
        if not isinstance(problem, Exception):
            return problem
        errors = self._ray.exceptions
        raised = isinstance(problem, errors.ActorDiedError) and "creation task" in str(problem)
        if raised or isinstance(problem, errors.RuntimeEnvSetupError | errors.RayTaskError):
            return await self._node_preparer.explain_failure(problem, self._group, bundle)
        return problem

    async def _query_new_agent(self, agent: AgentSlot, node_id: str, preload: tuple[str, ...]) -> ActorPlacement:
        """Return where a new agent is; raise if it does not answer and its node cannot be reached from here."""
        query = asyncio.ensure_future(self._adopt_or_create(agent, node_id, preload))
        try:
            while not (await asyncio.wait([query], timeout=NOTICE_AFTER_S))[0]:
                if not await self.check_reachable(node_id):
                    raise AgentSilentError(f"node {node_id} cannot be reached")
            return query.result()
        finally:
            query.cancel()

    async def _adopt_or_create(self, agent: AgentSlot, node_id: str, preload: tuple[str, ...]) -> ActorPlacement:
        if agent.idle_token:
            try:
                async with asyncio.timeout(NOTICE_AFTER_S):
                    await agent.actor.adopt.remote(agent.idle_token, self.token)
            except (self._ray.exceptions.RayError, TimeoutError):  # It has ended, or is unresponsive.
                await self._kill_actors([agent.actor])
                agent.actor = self._create_actor(node_id, preload)
        return await self.query_placement(agent)

    async def query_placement(self, agent: AgentSlot) -> ActorPlacement:
        """Return where an agent is; raise only once the cluster says that it is lost."""
        deadline = time.monotonic() + _UNREACHABLE_TIMEOUT_S
        while True:
            try:
                answer: ActorPlacement = await agent.actor.set_up.remote(self.token, self._node_preparer.code_refs())
                return answer
            except self._ray.exceptions.ActorUnavailableError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_POLL_S)

    def _bundle_nodes(self, group: Any) -> dict[int, str]:
        """Return the node of each bundle; empty for an unplaced one."""
        from ray.util.placement_group import placement_group_table

        table = placement_group_table(group)
        if table["state"] == "REMOVED":
            return {}
        nodes: Mapping[int, str] = table["bundles_to_node_id"]
        return {bundle: nodes.get(bundle, "") for bundle in table["bundles"]}

    def _take_agent(self, node_id: str, bundle: int, preload: tuple[str, ...]) -> AgentSlot:
        """Return an agent that another run has left, or a new one."""
        if (idle := idle_agents.take(self._make_key(node_id))) is not None:
            return AgentSlot(idle.actor, bundle, idle.token)
        return AgentSlot(self._create_actor(node_id, preload), bundle)

    def _create_actor(self, node_id: str, preload: tuple[str, ...]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        on_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
        options = {
            "num_cpus": 0,
            "max_restarts": 0,
            "scheduling_strategy": on_node,
            **self._node_preparer.actor_options,
        }
        actor_class = self._ray.remote(NodeAgent).options(**options)
        return actor_class.remote(self.token, preload, self._node_preparer.encoded_config)

    def _query_devices(self, bundle: int) -> Awaitable[tuple[str, tuple[str, ...]]]:
        """Query the node and the GPUs of a bundle, by a task in it: Ray assigns them to the bundle, not to the task."""

        def describe_devices() -> tuple[str, tuple[str, ...]]:
            import ray

            runtime = ray.get_runtime_context()
            return runtime.get_node_id(), tuple(map(str, runtime.get_accelerator_ids().get("GPU", ())))

        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        placed = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        options = {"num_cpus": 0, "num_gpus": self.placement_spec.bundle["GPU"], "max_retries": 0}
        task = self._ray.remote(describe_devices).options(
            **options, scheduling_strategy=placed, **self._node_preparer.actor_options
        )
        answer: Awaitable[tuple[str, tuple[str, ...]]] = task.remote()
        return answer


async def _gather_answers(questions: Sequence[Awaitable[T]]) -> list[T | BaseException]:
    return await asyncio.gather(*questions, return_exceptions=True)
