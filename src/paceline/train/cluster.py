"""A run whose workers live on a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from paceline._core.choice import Choice
from paceline._engine.base import Engine, Needs
from paceline._engine.local.devices import Share
from paceline._engine.local.inline import InlineLauncher
from paceline._engine.ray.connect import connected, gcs_address
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.escort import Escort
from paceline._engine.ray.placement import Wanted
from paceline._engine.ray.shared import Storage
from paceline._engine.ray.travel import Luggage, luggage
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.datasets import AskedData
from paceline.train.job import pickled_filesystem
from paceline.train.site import Say
from paceline.train.terminal import counted


class ClusterSite:
    preload: tuple[str, ...] = ("ray", "pyarrow", "paceline.data.iterator", "paceline.data.exec.ray.feeds")

    def __init__(self, scaling: ScalingConfig, config: RunConfig, choice: Choice) -> None:
        self._scaling = scaling
        self._config = config
        self._choice = choice
        self._wanted = wanted(scaling, config)
        self._luggage = Luggage()

    def check(self) -> None:
        connected(self._choice.address)
        self._luggage = luggage(self._config.worker_runtime_env)

    def described(self) -> str:
        least, most = self._scaling.sizes[0], self._scaling.sizes[-1]
        workers = counted(most, "worker") if least == most else f"{least} to {counted(most, 'worker')}"
        return f"{workers} on the Ray cluster at {gcs_address()} ({self._choice.reason})"

    def shares(self, size: int) -> tuple[Share, ...]:
        """The engine says what each has, once it has a place."""
        return (Share(1, (), {}),) * size

    def share_beside(self, *, num_cpus: float, num_gpus: float) -> Share:
        return Share(max(1, int(num_cpus)), (), {})

    def engine(self, inline: InlineLauncher | None, say: Say, beside: Needs | None = None) -> Engine:
        if beside is None:
            escort = Escort(self._luggage, self._storage())
            return RayEngine(self._wanted, say, self._choice.address, escort=escort)
        resources = {"CPU": beside.num_cpus, "GPU": beside.num_gpus}
        asked = Wanted(resources, env=self._wanted.env)
        return RayEngine(asked, say, self._choice.address, escort=Escort(self._luggage))

    def _storage(self) -> Storage:
        home = self._config.home
        filesystem = pickled_filesystem(self._config.storage_filesystem)
        return Storage(home.uri, str(home.layout.root), home.address, filesystem)

    @contextlib.contextmanager
    def served(self, data: AskedData | None, say: Say) -> Iterator[str]:
        if data is None:
            yield ""
            return
        from paceline.data.exec.ray.start import serving

        with serving(data.plans, data.context, self._luggage, say) as address:
            yield address


def wanted(scaling: ScalingConfig, config: RunConfig) -> Wanted:
    """What a worker asks of the cluster."""
    resources = {"CPU": scaling.num_cpus_per_worker, "GPU": scaling.num_gpus_per_worker}
    resources |= scaling.additional_resources_per_worker
    if scaling.accelerator_type is not None:
        resources[f"accelerator_type:{scaling.accelerator_type}"] = 0.001
    given = (config.worker_runtime_env or {}).get("env_vars") or {}
    return Wanted(resources, scaling.placement_strategy, scaling.label_selector, env=dict(given))
