"""The actors of a run and their places on the cluster, kept from attempt to attempt.

When a node is lost, Ray moves the bundles that were on it as soon as there is room; the actors that are alive stay,
with all that they have imported, and only the moved bundles get new ones. A group for fewer workers takes those of the
actors that are left. Where that is not enough, or a node is about to be taken away, all are placed anew.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline._engine.ray.escort import Escort
from paceline._engine.ray.look import looked
from paceline._engine.ray.nodes import Survey, first_line, loss_of, surveyed
from paceline._engine.ray.placement import Wanted, order_of
from paceline._engine.ray.room import waiting
from paceline._engine.ray.shell import Shell, Where

_CLOSE_S = 5.0
"""How long the end of the actors is waited for."""
_CLOSE_EACH_S = 0.01
_LOOK_S = 0.2
_FATE_S = 60.0
"""How long an actor that cannot be reached is given, until the cluster says what became of it."""
_ROOM_EVERY_S = 1.0
_SAY_EVERY_S = 30.0

NOWHERE = Where("", "", "", 0, 1)


@dataclass(eq=False)
class Seat:
    """One actor, where it lies, and how its worker is doing."""

    actor: Any
    bundle: int
    where: Where = NOWHERE
    rank: int = -1
    pid: int = 0
    log: Path = Path()
    num_heard: int = 0
    """The number of its worker's last report."""
    spoken: bool = False
    """Its worker has said that it returned or failed; its end is no news."""
    stopped: bool = True
    lost: bool = False
    """Nothing will be heard of it any more."""
    listening: asyncio.Task[None] | None = None

    def is_at_work(self) -> bool:
        return not self.stopped


@dataclass
class _Wait:
    """For places: when the cluster is looked at next, and when something is said."""

    size: int
    look_at: float = field(default_factory=lambda: time.monotonic() + _ROOM_EVERY_S)
    say_at: float = 0.0


Listen = Callable[[Seat], Coroutine[Any, Any, None]]


class Unroomed(Exception):
    """There is room for fewer workers than were asked for, and the run can do with fewer."""


def chosen(
    size: int, placed: Mapping[int, str], kept: Mapping[int, str], survey: Survey
) -> list[int] | Literal["wait", "anew"]:
    """The bundles that `size` workers are put on; or whether to wait for them, or to place all anew.

    `placed` has the node of each bundle of the placement group, `kept` that of those whose actor is alive.
    """
    usable = [bundle for bundle, node in placed.items() if survey.is_good(node)]
    if len(usable) >= size:
        warm_first = sorted(usable, key=lambda bundle: (kept.get(bundle) != placed[bundle], bundle))
        return sorted(warm_first[:size])
    # Bundles of a node that is drained are not moved before it is gone.
    if len(placed) == size and not any(node in survey.draining for node in placed.values()):
        return "wait"
    return "anew"


class Crew:
    def __init__(
        self,
        ray: Any,
        wanted: Wanted,
        escort: Escort,
        token: str,
        say: Callable[[str], None],
        room: Callable[[int], int] | None = None,
    ) -> None:
        """`room` is how many workers out of so many there is room for now; given where the run can do with fewer."""
        self._ray = ray
        self.wanted = wanted
        self.token = token
        self._escort = escort
        self._say = say
        self._room = room
        self._home = ray.get_runtime_context().get_node_id()
        self._group: Any = None
        self._total = 0
        self._seats: dict[int, Seat] = {}
        """By bundle."""

    async def placed(self, size: int, preload: tuple[str, ...], listen: Listen) -> list[Seat]:
        """Actors for so many workers, in the order of their ranks; `listen` hears each, for as long as it lives."""
        wait = _Wait(size)
        while True:
            if self._group is None or self._total < size:
                await self.dismissed()
                self._made(size)
            survey, placed = await asyncio.to_thread(self._surveyed, self._group)
            await self._parted(survey)
            kept = {bundle: seat.where.node_id for bundle, seat in self._seats.items()}
            bundles = chosen(size, placed, kept, survey)
            if bundles == "anew":
                await self.dismissed()
            elif bundles == "wait":
                await self._waited(wait)
            elif await self._manned(bundles, placed, preload, listen):
                seats = [self._seats[bundle] for bundle in bundles]
                return [seats[index] for index in order_of([seat.where for seat in seats], self._home)]

    def held(self) -> Counter[str]:
        """How many places are held on each node. On any thread."""
        group = self._group
        return Counter() if group is None else Counter(filter(None, self._bundles(group).values()))

    def places(self) -> list[str]:
        """The nodes of those actors that have come up, as far as is known here. On any thread."""
        return [seat.where.node_id for seat in list(self._seats.values()) if seat.where.node_id and not seat.lost]

    async def dismissed(self) -> None:
        """Let the actors and their places go."""
        group, self._group, self._total = self._group, None, 0
        seats, self._seats = list(self._seats.values()), {}
        if group is not None:
            await self._let_go(seats, group)

    async def _parted(self, survey: Survey) -> None:
        """Let those actors go that are lost, or will be with their node."""
        gone = [seat for seat in self._seats.values() if seat.lost or not survey.is_good(seat.where.node_id)]
        for seat in gone:
            del self._seats[seat.bundle]
        await self._let_go(gone)

    async def _let_go(self, seats: Sequence[Seat], group: Any = None) -> None:
        for seat in seats:
            seat.lost = seat.stopped = True

        def let_go() -> None:
            for seat in seats:
                self._ray.kill(seat.actor)
            if group is not None:
                self._ray.util.remove_placement_group(group)

        if not seats and group is None:
            return
        if not self._ray.is_initialized():
            return  # They went with the connection.
        timeout_s = _CLOSE_S + _CLOSE_EACH_S * len(seats)
        try:
            # Not wait_for, which may lose a cancellation before Python 3.12.
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(let_go)
        except Exception as problem:  # noqa: BLE001  said, and no more: nothing of the run depends on it
            self._say(f"actors of the run could not be ended: {first_line(loss_of(problem))}")
        listening = [seat.listening for seat in seats if seat.listening is not None]
        if listening:
            await asyncio.wait(listening, timeout=timeout_s)

    def _made(self, size: int) -> None:
        labels: dict[str, Any] = {}
        if self.wanted.label_selector:
            labels["bundle_label_selector"] = self.wanted.selectors(size)
        bundles = [self.wanted.bundle] * size
        self._group = self._ray.util.placement_group(bundles, strategy=self.wanted.strategy, **labels)
        self._total = size

    async def _waited(self, wait: _Wait) -> None:
        """Wait a moment for places; say what is waited for, if it takes long."""
        began = time.monotonic()
        await asyncio.to_thread(self._group.wait, _LOOK_S)
        now = time.monotonic()
        if now - began < _LOOK_S / 10:
            await asyncio.sleep(_LOOK_S / 10)  # It was placed once, and is not now.
        if now < wait.look_at:
            return
        wait.look_at = now + _ROOM_EVERY_S
        room = await asyncio.to_thread(self._room, wait.size) if self._room is not None else wait.size
        if room < wait.size:
            raise Unroomed(f"there is room for {room} of {wait.size} workers")
        if now >= wait.say_at:
            wait.say_at = now + _SAY_EVERY_S
            cluster, held = await asyncio.to_thread(lambda: (looked(), self.held()))
            self._say(waiting(self.wanted, wait.size, cluster, held))

    async def _manned(
        self, bundles: Sequence[int], placed: Mapping[int, str], preload: tuple[str, ...], listen: Listen
    ) -> bool:
        """Put actors on those bundles that have none; False where some were lost on the way with their node."""
        new = {bundle: self._hired(bundle, preload) for bundle in bundles if bundle not in self._seats}
        self._seats |= new  # So that they are let go, whatever happens.
        answers = await asyncio.gather(*(self.where(seat) for seat in new.values()), return_exceptions=True)
        problems = []
        for seat, answer in zip(new.values(), answers, strict=True):
            if isinstance(answer, BaseException):
                seat.lost = True
                problems.append((seat, answer))
            else:
                seat.where = answer
        if problems:
            survey = await asyncio.to_thread(surveyed, self._ray)
            for seat, problem in problems:
                if survey.is_good(placed[seat.bundle]):
                    raise await self._explained(problem, seat)
        came = [seat for seat in new.values() if not seat.lost]
        await self._escort.check(self.token, [(seat.actor, seat.where) for seat in came])
        for seat in came:
            seat.listening = asyncio.get_running_loop().create_task(listen(seat))
        return not any(self._seats[bundle].lost for bundle in bundles)

    async def _explained(self, problem: BaseException, seat: Seat) -> BaseException:
        """Whether an actor would not come up the next time either."""
        if not isinstance(problem, Exception):
            return problem
        errors = self._ray.exceptions
        raised = isinstance(problem, errors.ActorDiedError) and "creation task" in str(problem)
        if raised or isinstance(problem, errors.RuntimeEnvSetupError | errors.RayTaskError):
            return await self._escort.explained(problem, self._group, seat.bundle)
        return problem

    async def where(self, seat: Seat) -> Where:
        """Where an actor lies; raises once the cluster says that it is lost, and not before."""
        deadline = time.monotonic() + _FATE_S
        while True:
            try:
                answer: Where = await seat.actor.where.remote(self.token, self._escort.files())
                return answer
            except self._ray.exceptions.ActorUnavailableError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_LOOK_S)

    def _surveyed(self, group: Any) -> tuple[Survey, dict[int, str]]:
        return surveyed(self._ray), self._bundles(group)

    def _bundles(self, group: Any) -> dict[int, str]:
        """The node of each bundle; empty for one that has none."""
        from ray.util.placement_group import placement_group_table

        table = placement_group_table(group)
        if table["state"] == "REMOVED":
            return {}
        nodes: Mapping[int, str] = table["bundles_to_node_id"]
        return {bundle: nodes.get(bundle, "") for bundle in table["bundles"]}

    def _hired(self, bundle: int, preload: tuple[str, ...]) -> Seat:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {
            **self.wanted.options,
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle),
        }
        shell = self._ray.remote(Shell).options(**options, **self._escort.options)
        return Seat(shell.remote(self.token, preload, self._escort.kit), bundle)
