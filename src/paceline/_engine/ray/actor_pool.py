"""The actors of a run and their bundles on the cluster, kept from attempt to attempt.

When a node is lost, Ray reschedules its bundles as soon as there is capacity, and only these get new actors. A group of
fewer workers uses the actors that are left. If that is not enough, or a node is draining, the group is placed anew.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline._engine.ray.cluster_capacity import describe_wait
from paceline._engine.ray.node_preparer import NodePreparer
from paceline._engine.ray.nodes import ClusterSurvey, read_cluster, summarize_error, survey_cluster
from paceline._engine.ray.placement import PlacementSpec, order_ranks
from paceline._engine.ray.worker_actor import ActorPlacement, WorkerActor

_CLOSE_TIMEOUT_S = 5.0
"""How long to wait for the actors to end."""
_CLOSE_TIMEOUT_PER_ACTOR_S = 0.01
_POLL_S = 0.2
_UNREACHABLE_TIMEOUT_S = 60.0
"""How long to retry an actor that cannot be reached, until the cluster says what happened to it."""
_CAPACITY_POLL_S = 1.0
_MESSAGE_INTERVAL_S = 30.0

UNPLACED = ActorPlacement("", "", "", 0, 1)


@dataclass(eq=False)
class ActorSlot:
    """One actor, its placement, and the state of its worker."""

    actor: Any
    bundle: int
    placement: ActorPlacement = UNPLACED
    rank: int = -1
    pid: int = 0
    log: Path = Path()
    last_seq: int = 0
    has_reported_end: bool = False
    """Its worker has reported that it returned or failed, so its exit adds nothing."""
    is_stopped: bool = True
    is_lost: bool = False
    """No more output will come from it."""
    stream_task: asyncio.Task[None] | None = None

    def is_working(self) -> bool:
        """Asked after an await: a type checker would take the attribute for unchanged."""
        return not self.is_stopped


@dataclass
class _PlacementWait:
    """State of waiting for a placement: when to check capacity next, and when to print the next message."""

    size: int
    next_check_at: float = field(default_factory=lambda: time.monotonic() + _CAPACITY_POLL_S)
    next_message_at: float = 0.0


StreamListener = Callable[[ActorSlot], asyncio.Task[None]]


class InsufficientCapacity(Exception):
    """Fewer workers fit than were requested, and the run can continue with fewer."""


def choose_bundles(
    size: int, placed: Mapping[int, str], kept: Mapping[int, str], survey: ClusterSurvey
) -> list[int] | Literal["wait", "anew"]:
    """Choose the bundles for `size` workers, or whether to wait for them or to place the group anew.

    `placed` maps each bundle of the placement group to its node; `kept` does so for bundles whose actor is alive.
    """
    usable = [bundle for bundle, node in placed.items() if survey.is_usable(node)]
    if len(usable) >= size:
        warm_first = sorted(usable, key=lambda bundle: (kept.get(bundle) != placed[bundle], bundle))
        return sorted(warm_first[:size])
    # Bundles on a draining node are not moved until it is gone.
    if len(placed) == size and not any(node in survey.draining for node in placed.values()):
        return "wait"
    return "anew"


class ActorPool:
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
        self._slots: dict[int, ActorSlot] = {}
        """By bundle."""

    async def place_actors(self, size: int, preload: tuple[str, ...], listen: StreamListener) -> list[ActorSlot]:
        """Return actors for `size` workers, in rank order; `listen` starts to read the stream of each."""
        wait = _PlacementWait(size)
        while True:
            if self._group is None or self._total < size:
                await self.release_all()
                self._create_placement_group(size)
            survey, placed = await asyncio.to_thread(
                lambda: (survey_cluster(self._ray), self._bundle_nodes(self._group))
            )
            await self._release_lost(survey)
            kept = {bundle: slot.placement.node_id for bundle, slot in self._slots.items()}
            bundles = choose_bundles(size, placed, kept, survey)
            if bundles == "anew":
                await self.release_all()
            elif bundles == "wait":
                await self._wait_for_bundles(wait)
            elif await self._fill_bundles(bundles, placed, preload, listen):
                slots = [self._slots[bundle] for bundle in bundles]
                return [slots[index] for index in order_ranks([slot.placement for slot in slots], self._driver_node)]

    def count_held_bundles(self) -> Counter[str]:
        """Count the bundles held on each node. Callable from any thread."""
        group = self._group
        return Counter() if group is None else Counter(filter(None, self._bundle_nodes(group).values()))

    def list_nodes(self) -> list[str]:
        """Return the nodes of the actors known to have started. Callable from any thread."""
        return [
            slot.placement.node_id for slot in list(self._slots.values()) if slot.placement.node_id and not slot.is_lost
        ]

    async def release_all(self) -> None:
        group, self._group, self._total = self._group, None, 0
        slots, self._slots = list(self._slots.values()), {}
        if group is not None:
            await self._release(slots, group)

    async def _release_lost(self, survey: ClusterSurvey) -> None:
        """Release actors that are lost, or whose node is gone or draining."""
        released = [
            slot for slot in self._slots.values() if slot.is_lost or not survey.is_usable(slot.placement.node_id)
        ]
        for slot in released:
            del self._slots[slot.bundle]
        await self._release(released)

    async def _release(self, slots: Sequence[ActorSlot], group: Any = None) -> None:
        for slot in slots:
            slot.is_lost = slot.is_stopped = True

        def release_on_cluster() -> None:
            for slot in slots:
                self._ray.kill(slot.actor)
            if group is not None:
                self._ray.util.remove_placement_group(group)

        if (not slots and group is None) or not self._ray.is_initialized():
            return  # Nothing is left to release, or it went with the connection.
        timeout_s = _CLOSE_TIMEOUT_S + _CLOSE_TIMEOUT_PER_ACTOR_S * len(slots)
        try:
            # Not wait_for, which may lose a cancellation before Python 3.12.
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(release_on_cluster)
        except Exception as problem:  # noqa: BLE001 - reported only: nothing of the run depends on it
            self._notify_user(f"cannot end actors of the run: {summarize_error(problem)}")
        stream_tasks = [slot.stream_task for slot in slots if slot.stream_task is not None]
        if stream_tasks:
            await asyncio.wait(stream_tasks, timeout=timeout_s)

    def _create_placement_group(self, size: int) -> None:
        labels: dict[str, Any] = {}
        if self.placement_spec.label_selector:
            labels["bundle_label_selector"] = self.placement_spec.bundle_selectors(size)
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
            cluster, held = await asyncio.to_thread(lambda: (read_cluster(), self.count_held_bundles()))
            self._notify_user(describe_wait(self.placement_spec, wait.size, cluster, held))

    async def _fill_bundles(
        self, bundles: Sequence[int], placed: Mapping[int, str], preload: tuple[str, ...], listen: StreamListener
    ) -> bool:
        """Create actors on the bundles that have none; return False if some were lost along with their node."""
        new = {bundle: self._create_actor(bundle, preload) for bundle in bundles if bundle not in self._slots}
        self._slots |= new  # Recorded now, so that they are released whatever happens.
        answers = await asyncio.gather(*(self.query_placement(slot) for slot in new.values()), return_exceptions=True)
        problems = []
        for slot, answer in zip(new.values(), answers, strict=True):
            if isinstance(answer, BaseException):
                slot.is_lost = True
                problems.append((slot, answer))
            else:
                slot.placement = answer
        if problems:
            survey = await asyncio.to_thread(survey_cluster, self._ray)
            for slot, problem in problems:
                if survey.is_usable(placed[slot.bundle]):
                    raise await self._explain_failure(problem, slot)
        started = [slot for slot in new.values() if not slot.is_lost]
        await self._node_preparer.check_actors(self.token, [(slot.actor, slot.placement) for slot in started])
        for slot in started:
            slot.stream_task = listen(slot)
        return not any(self._slots[bundle].is_lost for bundle in bundles)

    async def _explain_failure(self, problem: BaseException, slot: ActorSlot) -> BaseException:
        """Return the error to raise: a `StartRefused` if the actor would fail the same way next time."""
        if not isinstance(problem, Exception):
            return problem
        errors = self._ray.exceptions
        raised = isinstance(problem, errors.ActorDiedError) and "creation task" in str(problem)
        if raised or isinstance(problem, errors.RuntimeEnvSetupError | errors.RayTaskError):
            return await self._node_preparer.explain_failure(problem, self._group, slot.bundle)
        return problem

    async def query_placement(self, slot: ActorSlot) -> ActorPlacement:
        """Return where an actor is; raise only once the cluster says that it is lost."""
        deadline = time.monotonic() + _UNREACHABLE_TIMEOUT_S
        while True:
            try:
                answer: ActorPlacement = await slot.actor.set_up.remote(self.token, self._node_preparer.code_refs())
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

    def _create_actor(self, bundle: int, preload: tuple[str, ...]) -> ActorSlot:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {
            **self.placement_spec.actor_options,
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle),
        }
        actor_class = self._ray.remote(WorkerActor).options(**options, **self._node_preparer.actor_options)
        return ActorSlot(actor_class.remote(self.token, preload, self._node_preparer.encoded_config), bundle)
