"""What the engine does for the workers of a run on their way: luggage, the storage they will find, and why they stall.

An actor that does not come up, a node with another Paceline, a node that does not see the run's storage: each is told
in one sentence with the node and the way out, and is not tried again, since it would end the same way.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline._engine.messages import FailureKind
from paceline._engine.ray import printed, shared
from paceline._engine.ray.connect import imported
from paceline._engine.ray.shell import Said, Where
from paceline._engine.ray.travel import Luggage

logger = logging.getLogger("paceline")

_ASK_S = 60.0
"""How long a node may take to look at the run's storage, or to say what it has."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ADDRESS = re.compile(r"\[Node ([^\]]+)\]|\bip=([0-9a-fA-F.:]+)")


class Refused(Exception):
    """The workers cannot be started, and could not the next time."""

    def __init__(self, message: str, kind: FailureKind = "engine") -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class Escort:
    def __init__(self, luggage: Luggage | None = None, storage: shared.Storage | None = None) -> None:
        self._luggage = luggage if luggage is not None else Luggage()
        self._storage = storage
        self._files: list[Any] = []
        self._seen: set[str] = set()
        """The nodes that are known to see the run's storage."""

    @property
    def kit(self) -> bytes:
        return msgspec.json.encode(self._luggage.kit)

    @property
    def options(self) -> dict[str, Any]:
        """Of each actor."""
        given = self._luggage.runtime_env
        return {"runtime_env": dict(given)} if given is not None else {}

    def files(self) -> list[Any]:
        """A reference to what travels: put into the object store once, fetched by the nodes that lack it."""
        if self._luggage.data and not self._files:
            self._files.append(imported().put(self._luggage.data))
        return self._files

    async def check(self, token: str, actors: Sequence[tuple[Any, Where]]) -> None:
        """The actors have come up: that they can work for this driver. Storage is looked at once for each node."""
        _check_versions(self._luggage.kit.version, self._luggage.kit.python, [where for _, where in actors])
        for _, where in actors:
            if where.lacks:
                raise Refused(f"node {_called(where)} does not have the user's modules: {where.lacks}")
        new = {where.node_id: (actor, where) for actor, where in reversed(actors) if where.node_id not in self._seen}
        if self._storage is None or not new:
            return
        probe = shared.Probe(self._storage)
        await asyncio.to_thread(probe.begin)
        try:
            asked = msgspec.json.encode(probe.asked)
            answers = await asyncio.gather(*(_answer(actor.sees.remote(token, asked)) for actor, _ in new.values()))
            found = {
                _called(where): await asyncio.to_thread(probe.problem, where.node_id, told)
                for told, (_, where) in zip(answers, new.values(), strict=True)
            }
        finally:
            await asyncio.to_thread(probe.close)
        problems = {node: problem for node, problem in found.items() if problem}
        if problems:
            raise Refused(shared.not_shared(self._storage, problems), "storage")
        self._seen |= new.keys()

    async def explained(self, error: Exception, group: Any, bundle: int) -> Refused:
        """Why an actor that was to lie on a bundle did not come up."""
        kit = self._luggage.kit
        ray = imported()
        node, reason = _told_by(error)
        if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
            return Refused(
                f"the environment of the workers could not be made on node {node}: {reason}\n\n"
                "hint: look at RunConfig(worker_runtime_env=...); Ray's own log of it is on that node, "
                "runtime_env_setup-*.log"
            )
        try:
            async with asyncio.timeout(_ASK_S):
                found = await self._asked(group, bundle)
        except (ray.exceptions.RayError, TimeoutError):
            found = None  # It cannot be asked; what it said first is told.
        if found is not None:
            address, version, python, problem = found
            _check_version(kit.version, kit.python, version, python, address)
            node, reason = address, problem or reason
        return Refused(f"the actor around a worker could not be started on node {node}: {reason}")

    def _asked(self, group: Any, bundle: int) -> Any:
        """Ask a node what it has, by a function that needs nothing of ours there."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        def what_is_there() -> tuple[str, str, str, str]:
            import platform

            import ray

            address: Any = ray.util.get_node_ip_address
            version = problem = ""
            try:
                import paceline

                version = paceline.__version__
                import paceline._engine.ray.shell
            except Exception as error:  # noqa: BLE001  it is what was asked for
                problem = f"{type(error).__name__}: {error}"
            return address(), version, platform.python_version(), problem

        placed = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        asked = imported().remote(what_is_there).options(num_cpus=0, scheduling_strategy=placed, **self.options)
        return asked.remote()


def heard(said: Said, log: Path) -> None:
    """Keep what a worker printed where the driver cannot see its log."""
    if not said.printed:
        return
    try:
        printed.append(log, said.printed)
    except OSError as error:
        logger.warning("what was printed on another machine could not be written to %s: %s", log, error)


async def _answer(asked: Any) -> str:
    try:
        async with asyncio.timeout(_ASK_S):  # Not wait_for, which may lose a cancellation before Python 3.12.
            answer: str = await asked
    except TimeoutError:
        return f"no answer within {_ASK_S:.0f} s: the storage does not respond there"
    return answer


def _called(where: Where) -> str:
    return f"{where.address} ({where.node_id})"


def _check_versions(version: str, python: str, places: Sequence[Where]) -> None:
    for where in places:
        _check_version(version, python, where.version, where.python, _called(where))


def _check_version(version: str, python: str, there: str, python_there: str, node: str) -> None:
    if not version:
        return  # Nothing was packed for these workers, as in tests of the engine alone.
    if not there:
        raise Refused(
            f"Paceline is not installed on node {node} (Python {python_there}); the driver has {version} "
            f"(Python {python})\n\nhint: install paceline=={version} there, or have Ray do it: "
            f"RunConfig(worker_runtime_env={{'pip': ['paceline[ray]=={version}']}})"
        )
    if there != version:
        raise Refused(
            f"node {node} has Paceline {there} (Python {python_there}), and the driver {version} (Python {python})"
            f"\n\nhint: install the same on all machines; pip install 'paceline=={version}'"
        )
    if python_there.split(".")[:2] != python.split(".")[:2]:
        raise Refused(
            f"node {node} has Python {python_there} with Paceline {there}, and the driver Python {python} with "
            f"{version}\n\nhint: functions cannot be sent from one minor version of Python to another; use the same"
        )


def _told_by(error: Exception) -> tuple[str, str]:
    """The node and the reason, from a page of Ray's: the last line that names an exception."""
    text = _COLOURS.sub("", str(error))
    found = _ADDRESS.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b", line)]
    reason = (named or lines or [type(error).__name__])[-1]
    return (found.group(1) or found.group(2)) if found else "unknown", reason[:500]
