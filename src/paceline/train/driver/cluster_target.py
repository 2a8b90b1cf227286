"""The execution target of a run whose workers are on a Ray cluster."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from paceline._core import settings
from paceline._core.engine_choice import EngineChoice
from paceline._engine.base import Engine, WorkerResources
from paceline._engine.local.devices import DeviceShare
from paceline._engine.local.launchers import InlineLauncher
from paceline._engine.ray import authentication
from paceline._engine.ray.cluster_capacity import find_capacity_problem
from paceline._engine.ray.cluster_monitor import ClusterMonitor, MonitoredEngine
from paceline._engine.ray.code_bundle import CodeBundle, build_code_bundle
from paceline._engine.ray.connection import connect_to_cluster, gcs_address, is_driver
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.node_preparer import NodePreparer
from paceline._engine.ray.nodes import read_cluster
from paceline._engine.ray.placement import PlacementSpec
from paceline._engine.ray.storage_probe import RunStorage
from paceline._view.formatting import format_count
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.driver.datasets import DataEndpoint, DatasetSpec, summarize_stages
from paceline.train.driver.execution_target import Say
from paceline.train.driver.job import pickle_filesystem


class ClusterTarget:
    preload: tuple[str, ...] = ("ray", "pyarrow", "paceline.data.iterator", "paceline.data.exec.ray.serving.feeds")

    def __init__(
        self,
        scaling: ScalingConfig,
        config: RunConfig,
        choice: EngineChoice,
        *,
        code_bundle: CodeBundle | None = None,
        most: int | None = None,
    ) -> None:
        """`code_bundle`: a bundle that is packed already; `most`: an upper limit on the number of workers."""
        self._scaling = scaling
        self._config = config
        self._choice = choice
        self._worker_resources = build_worker_resources(scaling, config)
        self._given_bundle = code_bundle
        self._max_workers = most
        self.code_bundle = code_bundle if code_bundle is not None else CodeBundle()
        """The files sent to the nodes, packed where the script runs."""
        self.engines: list[RayEngine] = []
        self._thread_env: dict[str, str] = {}
        self._is_in_actor = False

    def copy_for_actor(self) -> ClusterTarget:
        """Return a copy for an actor of the cluster. Ray restarts a lost actor, and it is already connected."""
        moved = copy.copy(self)
        moved._choice = replace(self._choice, address=None)
        moved._is_in_actor = True
        moved.code_bundle, moved._given_bundle, moved.engines = CodeBundle(), None, []
        return moved

    def check(self) -> None:
        connect_to_cluster(self._choice.address)
        self._check_capacity()
        if self._given_bundle is None:
            self.code_bundle = build_code_bundle(self._config.worker_runtime_env)
        # The user's setting applies to workers. In an actor, Ray has set the variable, not the user.
        num_threads = settings.load().omp_num_threads
        self._thread_env = {"OMP_NUM_THREADS": num_threads} if num_threads is not None and is_driver() else {}

    def describe(self) -> str:
        least, most = self._scaling.sizes[0], self._scaling.sizes[-1]
        workers = format_count(most, "worker") if least == most else f"{least} to {format_count(most, 'worker')}"
        return f"{workers} on the Ray cluster at {gcs_address()} ({self._choice.reason})"

    def compute_shares(self, size: int) -> tuple[DeviceShare, ...]:
        """Placeholders: the engine knows the devices of a worker only after placement."""
        return (DeviceShare(1, (), {}),) * size

    def compute_auxiliary_share(self, *, num_cpus: float, num_gpus: float) -> DeviceShare:
        self._check_capacity(self._auxiliary_resources(WorkerResources(num_cpus, num_gpus)))
        return DeviceShare(max(1, int(num_cpus)), (), {})

    def make_engine(self, inline: InlineLauncher | None, say: Say, beside: WorkerResources | None = None) -> Engine:
        resources = self._worker_resources if beside is None else self._auxiliary_resources(beside)
        resources = replace(resources, env={**self._thread_env, **resources.env})
        location, storage = self._config.location, None
        if beside is None:
            filesystem = pickle_filesystem(self._config.storage_filesystem)
            storage = RunStorage(location.uri, str(location.layout.root), location.address, filesystem)
        engine = RayEngine(
            resources,
            say,
            self._choice.address,
            node_preparer=NodePreparer(self.code_bundle, storage, say),
            least=self._scaling.sizes[0] if beside is None and self._scaling.elasticity_enabled else None,
            most=self._max_workers,
            is_movable=self._is_in_actor,
        )
        if beside is None:
            self.engines.append(engine)
            if warning := authentication.make_exposure_warning(gcs_address()):
                say(warning)
        monitor = self._make_cluster_monitor(say) if beside is None else self._make_cluster_monitor()
        return cast(Engine, MonitoredEngine(engine, monitor))

    @contextlib.contextmanager
    def serve_datasets(self, data: DatasetSpec | None, say: Say) -> Iterator[DataEndpoint]:
        if data is None:
            yield DataEndpoint()
            return
        from paceline.data.exec.ray.serving.row_service import serve_with_stats

        with contextlib.closing(self._make_cluster_monitor()) as monitor, contextlib.ExitStack() as stack:
            address, read_stats = stack.enter_context(serve_with_stats(data.plans, data.context, self.code_bundle, say))
            try:
                yield DataEndpoint(address, lambda: summarize_stages(read_stats()))
            finally:
                monitor.end_unless_lost(stack.pop_all().close)

    def _make_cluster_monitor(self, say: Say = lambda _: None) -> ClusterMonitor:
        return ClusterMonitor(gcs_address(), settings.load().cluster_patience_s, say)

    def _auxiliary_resources(self, needs: WorkerResources) -> PlacementSpec:
        """The resources of one process beside the workers, which may be placed on any node."""
        resources = {"CPU": needs.num_cpus, "GPU": needs.num_gpus}
        return PlacementSpec(resources, runtime_env=self._worker_resources.runtime_env, env=self._worker_resources.env)

    def _check_capacity(self, beside: PlacementSpec | None = None) -> None:
        problem = find_capacity_problem(self._worker_resources, self._scaling.sizes[0], read_cluster(), beside)
        if problem is not None:
            raise ValueError(problem)


def build_worker_resources(scaling: ScalingConfig, config: RunConfig) -> PlacementSpec:
    """The resources that one worker requests from the cluster."""
    resources = {"CPU": scaling.num_cpus_per_worker, "GPU": scaling.num_gpus_per_worker}
    resources |= scaling.additional_resources_per_worker
    if scaling.accelerator_type is not None:
        resources[f"accelerator_type:{scaling.accelerator_type}"] = 0.001
    variables = (config.worker_runtime_env or {}).get("env_vars") or {}
    return PlacementSpec(resources, scaling.placement_strategy, scaling.label_selector, env=dict(variables))
