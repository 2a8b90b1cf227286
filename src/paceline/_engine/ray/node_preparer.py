"""Prepares nodes for workers: ships the code bundle, checks versions, storage and clocks, and explains failed starts.

An actor that does not start, a node with another version of Paceline, a node that cannot see the run's storage: each
gets one message with the node and a solution. None is retried, because it would fail the same way. A clock that is far
off is only a warning: it endangers no checkpoint, since leases are numbered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from paceline._engine.messages import FailureKind
from paceline._engine.ray import storage_probe
from paceline._engine.ray.code_bundle import CodeBundle
from paceline._engine.ray.connection import import_ray
from paceline._engine.ray.node_agent import ActorPlacement
from paceline._storage.lease import MAX_CLOCK_SKEW_S

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
    def __init__(
        self,
        code_bundle: CodeBundle | None = None,
        storage: storage_probe.RunStorage | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._code_bundle = bundle = code_bundle if code_bundle is not None else CodeBundle()
        self.encoded_config = msgspec.json.encode(bundle.config)
        self.actor_options = {"runtime_env": dict(bundle.runtime_env)} if bundle.runtime_env is not None else {}
        self._storage = storage
        self._notify_user = say
        self._files: list[Any] = []
        self._checked_nodes: set[str] = set()
        """Nodes that are known to see the run's storage."""

    def code_refs(self) -> list[Any]:
        """Return a reference to the code bundle: put into the object store once, fetched by the nodes that lack it."""
        if self._code_bundle.data and not self._files:
            self._files.append(import_ray().put(self._code_bundle.data))
        return self._files

    async def check_actors(self, token: str, actors: Sequence[tuple[Any, ActorPlacement]]) -> None:
        """Check that new actors can work for this driver. Storage and clock are checked once per node."""
        config = self._code_bundle.config
        for _, placement in actors:
            _check_version(config.version, config.python, placement.version, placement.python, _format_node(placement))
        for _, placement in actors:
            if placement.missing_files:
                raise StartRefused(
                    f"node {_format_node(placement)} does not have the user's modules: {placement.missing_files}"
                )
        new = {
            placement.node_id: (actor, placement)
            for actor, placement in reversed(actors)
            if placement.node_id not in self._checked_nodes
        }
        if self._storage is None or not new:
            return
        probe = storage_probe.StorageProbe(self._storage)
        await asyncio.to_thread(probe.write_question)
        try:
            calls = (actor.check_storage.remote(token, probe.question) for actor, _ in new.values())
            answers = await asyncio.gather(*map(_await_answer, calls))
            reports = {
                _format_node(placement): await asyncio.to_thread(probe.read_report, placement.node_id, answer)
                for answer, (_, placement) in zip(answers, new.values(), strict=True)
            }
        finally:
            await asyncio.to_thread(probe.close)
        if problems := {node: report.problem for node, report in reports.items() if report.problem}:
            raise StartRefused(storage_probe.format_unshared_error(self._storage, problems), "storage")
        for node, report in reports.items():
            if abs(report.clock_lead_s) > MAX_CLOCK_SKEW_S:
                self._notify_user(storage_probe.format_clock_warning(node, report.clock_lead_s))
        self._checked_nodes |= new.keys()

    async def explain_failure(self, error: Exception, group: Any, bundle: int) -> StartRefused:
        config = self._code_bundle.config
        ray = import_ray()
        node, reason = _parse_ray_error(error)
        if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
            return StartRefused(
                f"cannot set up the workers' environment on node {node}: {reason}\n\n"
                "hint: check RunConfig(worker_runtime_env=...); Ray's log is on that node, runtime_env_setup-*.log"
            )
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                answer = await self._query_node(group, bundle)
        except (ray.exceptions.RayError, TimeoutError):
            answer = None  # The node cannot be queried; the first error is reported instead.
        if answer is not None:
            address, version, python, problem = answer
            _check_version(config.version, config.python, version, python, address)
            node, reason = address, problem or reason
        return StartRefused(f"cannot start a worker's actor on node {node}: {reason}")

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
                import paceline._engine.ray.node_agent
            except Exception as error:  # noqa: BLE001 - returned as the answer
                problem = f"{type(error).__name__}: {error}"
            return address(), version, platform.python_version(), problem

        placed = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        query = import_ray().remote(describe_node).options(num_cpus=0, scheduling_strategy=placed, **self.actor_options)
        return query.remote()


async def _await_answer(call: Any) -> str:
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):  # Not wait_for, which may lose a cancellation before Python 3.12.
            answer: str = await call
    except TimeoutError:
        return f"no answer within {_ASK_TIMEOUT_S:.0f} s: the storage does not respond there"
    return answer


def _format_node(placement: ActorPlacement) -> str:
    return f"{placement.address} ({placement.node_id})"


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
            f"node {node} has Paceline {there} (Python {python_there}), the driver has {version} (Python {python})"
            f"\n\nhint: install the same version on all machines: pip install 'paceline=={version}'"
        )
    if python_there.split(".")[:2] != python.split(".")[:2]:
        raise StartRefused(
            f"node {node} has Python {python_there} with Paceline {there}, the driver Python {python} with "
            f"{version}\n\nhint: functions cannot be sent between minor versions of Python; use the same version"
        )


def _parse_ray_error(error: Exception) -> tuple[str, str]:
    """Return the node and the reason from Ray's long error text: the last line that names an exception."""
    text = _COLOURS.sub("", str(error))
    match = _ADDRESS.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b", line)]
    reason = (named or lines or [type(error).__name__])[-1]
    return (match.group(1) or match.group(2)) if match else "unknown", reason[:500]
