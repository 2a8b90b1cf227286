"""A run whose workers live on a Ray cluster."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace

from paceline._core import settings
from paceline._core.choice import Choice
from paceline._engine.base import Engine, Needs
from paceline._engine.local.devices import Share
from paceline._engine.local.inline import InlineLauncher
from paceline._engine.ray.connect import connected, gcs_address, is_driver
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.escort import Escort
from paceline._engine.ray.look import looked
from paceline._engine.ray.placement import Wanted
from paceline._engine.ray.presence import Anchored, Presence
from paceline._engine.ray.room import problem
from paceline._engine.ray.shared import Storage
from paceline._engine.ray.travel import Luggage, luggage
from paceline._view.words import counted
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.datasets import AskedData, Served, stages_of
from paceline.train.job import pickled_filesystem
from paceline.train.site import Say


class ClusterSite:
    preload: tuple[str, ...] = ("ray", "pyarrow", "paceline.data.iterator", "paceline.data.exec.ray.feeds")

    def __init__(
        self,
        scaling: ScalingConfig,
        config: RunConfig,
        choice: Choice,
        *,
        luggage: Luggage | None = None,
        most: int | None = None,
    ) -> None:
        """`luggage`: what goes to the nodes, where it is packed already; `most`: the run has no more workers."""
        self._scaling = scaling
        self._config = config
        self._choice = choice
        self._wanted = wanted(scaling, config)
        self._packed = luggage
        self._most = most
        self.luggage = luggage if luggage is not None else Luggage()
        """What the nodes are sent, as it was packed where the script runs."""
        self.engines: list[RayEngine] = []
        """Those that were made for the workers of the run."""
        self._threads: dict[str, str] = {}
        self._moves = False

    def moved(self) -> ClusterSite:
        """The same for an actor of the cluster, which is started again where it is lost. It is connected already."""
        moved = copy.copy(self)
        moved._choice = replace(self._choice, address=None)
        moved._moves = True
        moved.luggage, moved._packed, moved.engines = Luggage(), None, []
        return moved

    def check(self) -> None:
        connected(self._choice.address)
        self._check_room()
        if self._packed is None:
            self.luggage = luggage(self._config.worker_runtime_env)
        # What the user has set here holds for workers; in an actor it is Ray that has set it.
        told = settings.load().omp_num_threads
        self._threads = {"OMP_NUM_THREADS": told} if told is not None and is_driver() else {}

    def described(self) -> str:
        least, most = self._scaling.sizes[0], self._scaling.sizes[-1]
        workers = counted(most, "worker") if least == most else f"{least} to {counted(most, 'worker')}"
        return f"{workers} on the Ray cluster at {gcs_address()} ({self._choice.reason})"

    def shares(self, size: int) -> tuple[Share, ...]:
        """The engine says what each has, once it has a place."""
        return (Share(1, (), {}),) * size

    def share_beside(self, *, num_cpus: float, num_gpus: float) -> Share:
        self._check_room(self._beside(Needs(num_cpus, num_gpus)))
        return Share(max(1, int(num_cpus)), (), {})

    def engine(self, inline: InlineLauncher | None, say: Say, beside: Needs | None = None) -> Engine:
        asked = self._wanted if beside is None else self._beside(beside)
        asked = replace(asked, env={**self._threads, **asked.env})
        escort = Escort(self.luggage, self._storage() if beside is None else None)
        least = self._scaling.sizes[0] if beside is None and self._scaling.elasticity_enabled else None
        engine = RayEngine(
            asked, say, self._choice.address, escort=escort, least=least, most=self._most, moves=self._moves
        )
        if beside is None:
            self.engines.append(engine)
        return Anchored(engine, self._presence())

    def _storage(self) -> Storage:
        home = self._config.home
        filesystem = pickled_filesystem(self._config.storage_filesystem)
        return Storage(home.uri, str(home.layout.root), home.address, filesystem)

    @contextlib.contextmanager
    def served(self, data: AskedData | None, say: Say) -> Iterator[Served]:
        if data is None:
            yield Served()
            return
        from paceline.data.exec.ray.start import watched

        with contextlib.closing(self._presence()) as presence, contextlib.ExitStack() as served:
            address, seen = served.enter_context(watched(data.plans, data.context, self.luggage, say))
            try:
                yield Served(address, lambda: stages_of(seen()))
            finally:
                presence.let_go(served.pop_all().close)

    def _presence(self) -> Presence:
        return Presence(gcs_address(), settings.load().cluster_patience_s)

    def _beside(self, needs: Needs) -> Wanted:
        """What one process beside the workers asks for: it may lie anywhere."""
        resources = {"CPU": needs.num_cpus, "GPU": needs.num_gpus}
        return Wanted(resources, runtime_env=self._wanted.runtime_env, env=self._wanted.env)

    def _check_room(self, beside: Wanted | None = None) -> None:
        found = problem(self._wanted, self._scaling.sizes[0], looked(), beside)
        if found is not None:
            raise ValueError(found)


def wanted(scaling: ScalingConfig, config: RunConfig) -> Wanted:
    """What a worker asks of the cluster."""
    resources = {"CPU": scaling.num_cpus_per_worker, "GPU": scaling.num_gpus_per_worker}
    resources |= scaling.additional_resources_per_worker
    if scaling.accelerator_type is not None:
        resources[f"accelerator_type:{scaling.accelerator_type}"] = 0.001
    given = (config.worker_runtime_env or {}).get("env_vars") or {}
    return Wanted(resources, scaling.placement_strategy, scaling.label_selector, env=dict(given))
