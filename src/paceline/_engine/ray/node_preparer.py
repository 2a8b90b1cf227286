"""Prepares nodes for workers: ships the code bundle, checks versions and storage, and explains failed starts.

An actor that does not start, a node with another version of Paceline, a node that cannot see the run's storage: each
gets one message with the node and a solution. None is retried, because it would fail the same way.
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
from paceline._engine.ray import log_tail, storage_probe
from paceline._engine.ray.code_bundle import CodeBundle
from paceline._engine.ray.connection import import_ray
from paceline._engine.ray.worker_actor import ActorPlacement, WorkerOutput

logger = logging.getLogger("paceline")

_ASK_TIMEOUT_S = 60.0
"""How long a node may take to check the run's storage, or to describe itself."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ADDRESS = re.compile(r"\[Node ([^\]]+)\]|\bip=([0-9a-fA-F.:]+)")


class StartRefused(Exception):
    """The workers cannot be started, and a retry would fail the same way."""

    def __init__(self, message: str, kind: FailureKind = "engine") -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class NodePreparer:
    def __init__(self, luggage: CodeBundle | None = None, storage: storage_probe.RunStorage | None = None) -> None:
        self._code_bundle = luggage if luggage is not None else CodeBundle()
        self._storage = storage
        self._files: list[Any] = []
        self._checked_nodes: set[str] = set()
        """Nodes that are known to see the run's storage."""

    @property
    def encoded_config(self) -> bytes:
        return msgspec.json.encode(self._code_bundle.config)

    @property
    def actor_options(self) -> dict[str, Any]:
        """Ray options of each actor."""
        given = self._code_bundle.runtime_env
        return {"runtime_env": dict(given)} if given is not None else {}

    def code_refs(self) -> list[Any]:
        """Return a reference to the code bundle: put into the object store once, fetched by the nodes that lack it."""
        if self._code_bundle.data and not self._files:
            self._files.append(import_ray().put(self._code_bundle.data))
        return self._files

    async def check_actors(self, token: str, actors: Sequence[tuple[Any, ActorPlacement]]) -> None:
        """Check that new actors can work for this driver. Storage is checked once per node."""
        _check_versions(
            self._code_bundle.config.version, self._code_bundle.config.python, [where for _, where in actors]
        )
        for _, where in actors:
            if where.missing_files:
                raise StartRefused(
                    f"node {_format_node(where)} does not have the user's modules: {where.missing_files}"
                )
        new = {
            where.node_id: (actor, where)
            for actor, where in reversed(actors)
            if where.node_id not in self._checked_nodes
        }
        if self._storage is None or not new:
            return
        probe = storage_probe.StorageProbe(self._storage)
        await asyncio.to_thread(probe.write_question)
        try:
            asked = msgspec.json.encode(probe.question)
            answers = await asyncio.gather(
                *(_await_answer(actor.check_storage.remote(token, asked)) for actor, _ in new.values())
            )
            found = {
                _format_node(where): await asyncio.to_thread(probe.find_problem, where.node_id, told)
                for told, (_, where) in zip(answers, new.values(), strict=True)
            }
        finally:
            await asyncio.to_thread(probe.close)
        problems = {node: problem for node, problem in found.items() if problem}
        if problems:
            raise StartRefused(storage_probe.format_unshared_error(self._storage, problems), "storage")
        self._checked_nodes |= new.keys()

    async def explain_failure(self, error: Exception, group: Any, bundle: int) -> StartRefused:
        """Explain why an actor did not start on its bundle."""
        kit = self._code_bundle.config
        ray = import_ray()
        node, reason = _parse_ray_error(error)
        if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
            return StartRefused(
                f"the environment of the workers could not be made on node {node}: {reason}\n\n"
                "hint: look at RunConfig(worker_runtime_env=...); Ray's own log of it is on that node, "
                "runtime_env_setup-*.log"
            )
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                found = await self._query_node(group, bundle)
        except (ray.exceptions.RayError, TimeoutError):
            found = None  # The node cannot be queried; the first error is reported instead.
        if found is not None:
            address, version, python, problem = found
            _check_version(kit.version, kit.python, version, python, address)
            node, reason = address, problem or reason
        return StartRefused(f"the actor around a worker could not be started on node {node}: {reason}")

    def _query_node(self, group: Any, bundle: int) -> Any:
        """Query a node with a function that does not need Paceline there."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        def describe_node() -> tuple[str, str, str, str]:
            import platform

            import ray

            address: Any = ray.util.get_node_ip_address
            version = problem = ""
            try:
                import paceline

                version = paceline.__version__
                import paceline._engine.ray.worker_actor
            except Exception as error:  # noqa: BLE001  it is what was asked for
                problem = f"{type(error).__name__}: {error}"
            return address(), version, platform.python_version(), problem

        placed = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        asked = import_ray().remote(describe_node).options(num_cpus=0, scheduling_strategy=placed, **self.actor_options)
        return asked.remote()


def save_worker_log(said: WorkerOutput, log: Path) -> None:
    """Append a worker's output to the driver's copy of the log, if the driver cannot read the original."""
    if not said.log_data:
        return
    try:
        log_tail.append_to_log(log, said.log_data)
    except OSError as error:
        logger.warning("what was printed on another machine could not be written to %s: %s", log, error)


async def _await_answer(asked: Any) -> str:
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):  # Not wait_for, which may lose a cancellation before Python 3.12.
            answer: str = await asked
    except TimeoutError:
        return f"no answer within {_ASK_TIMEOUT_S:.0f} s: the storage does not respond there"
    return answer


def _format_node(where: ActorPlacement) -> str:
    return f"{where.address} ({where.node_id})"


def _check_versions(version: str, python: str, places: Sequence[ActorPlacement]) -> None:
    for where in places:
        _check_version(version, python, where.version, where.python, _format_node(where))


def _check_version(version: str, python: str, there: str, python_there: str, node: str) -> None:
    if not version:
        return  # Nothing was packed for these workers, as in tests of the engine alone.
    if not there:
        raise StartRefused(
            f"Paceline is not installed on node {node} (Python {python_there}); the driver has {version} "
            f"(Python {python})\n\nhint: install paceline=={version} there, or have Ray do it: "
            f"RunConfig(worker_runtime_env={{'pip': ['paceline[ray]=={version}']}})"
        )
    if there != version:
        raise StartRefused(
            f"node {node} has Paceline {there} (Python {python_there}), and the driver {version} (Python {python})"
            f"\n\nhint: install the same on all machines; pip install 'paceline=={version}'"
        )
    if python_there.split(".")[:2] != python.split(".")[:2]:
        raise StartRefused(
            f"node {node} has Python {python_there} with Paceline {there}, and the driver Python {python} with "
            f"{version}\n\nhint: functions cannot be sent from one minor version of Python to another; use the same"
        )


def _parse_ray_error(error: Exception) -> tuple[str, str]:
    """Return the node and the reason from Ray's long error text: the last line that names an exception."""
    text = _COLOURS.sub("", str(error))
    found = _ADDRESS.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b", line)]
    reason = (named or lines or [type(error).__name__])[-1]
    return (found.group(1) or found.group(2)) if found else "unknown", reason[:500]
