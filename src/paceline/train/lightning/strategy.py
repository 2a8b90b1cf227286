"""The mixin that makes a Lightning strategy use the ranks, device and process group of the run.

A Lightning strategy inspects the machine and the environment, may start processes, and may create a process group. Here
the backend has already done all that. This module does not import Lightning: the mixins are combined with its classes
in `lightning_classes` and `pytorch_lightning_classes`.
"""

from __future__ import annotations

import importlib
import logging
import signal
import threading
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from paceline._worker.signals import PREEMPTION_SIGNALS
from paceline.train.backend import require
from paceline.train.lightning.environment import ClusterEnvironmentMixin
from paceline.train.session import _require_context
from paceline.train.torch.devices import get_device

if TYPE_CHECKING:
    import torch

    from paceline._engine.messages import WorkerInit


class PacelineStrategyMixin:
    """Put in front of a Lightning strategy."""

    environment: ClassVar[type[ClusterEnvironmentMixin]]
    _cluster_environment: ClusterEnvironmentMixin | None = None
    _handlers: dict[int, Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        silence_other_ranks(type(self), _worker_init(self).rank)
        super().__init__(*args, **kwargs)

    @property
    def cluster_environment(self) -> ClusterEnvironmentMixin | None:
        return self._cluster_environment

    @cluster_environment.setter
    def cluster_environment(self, environment: Any) -> None:
        if environment is None or isinstance(environment, ClusterEnvironmentMixin):
            self._cluster_environment = environment
        elif type(environment).__module__.startswith(("lightning.", "lightning_fabric.", "pytorch_lightning.")):
            # Detected by Lightning, because the user gave none.
            self._cluster_environment = self.environment()
        else:
            raise ValueError(
                f"{type(environment).__name__} does not know the workers of this run\n\n"
                "hint: leave it out of Trainer(plugins=...), or give PacelineLightningEnvironment() there"
            )

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The device of this process; Lightning does not need the others."""
        return [get_device()]

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device] | None) -> None:
        if devices and list(devices) != self.parallel_devices:
            raise ValueError(
                f"parallel_devices={devices!r}, but this worker was given {get_device()}\n\n"
                "hint: leave it out; ScalingConfig(use_gpu=..., resources_per_worker=...) says who is given what"
            )

    @property
    def root_device(self) -> torch.device:
        return get_device()

    @property
    def world_size(self) -> int:
        return _worker_init(self).world_size

    @property
    def global_rank(self) -> int:
        return _worker_init(self).rank

    @property
    def local_rank(self) -> int:
        return _worker_init(self).local_rank

    @property
    def node_rank(self) -> int:
        return _worker_init(self).node_rank

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def _configure_launcher(self) -> None:
        """All processes already exist, so no launcher is needed."""
        self._launcher = None

    def setup(self, trainer: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {signum: signal.getsignal(signum) for signum in PREEMPTION_SIGNALS}
        super().setup(trainer)  # type: ignore[misc]

    def on_train_start(self) -> None:
        self._restore_signal_handlers()
        super().on_train_start()  # type: ignore[misc]

    def on_validation_start(self) -> None:
        self._restore_signal_handlers()
        super().on_validation_start()  # type: ignore[misc]

    def on_test_start(self) -> None:
        self._restore_signal_handlers()
        super().on_test_start()  # type: ignore[misc]

    def on_predict_start(self) -> None:
        self._restore_signal_handlers()
        super().on_predict_start()  # type: ignore[misc]

    def _restore_signal_handlers(self) -> None:
        """Restore our signal handlers, which Lightning replaces between a strategy's setup and the start of a loop.

        Lightning's SIGTERM handler runs a collective and then exits, which hangs or loses work. For us SIGTERM is a
        preemption notice, after which all ranks stop at the same report.
        """
        for signum, handler in (self._handlers or {}).items():
            signal.signal(signum, handler)
        self._handlers = None


class RequiresGpuMixin:
    """Raises at once on a worker without a GPU. `requires` lists the packages a strategy needs besides Lightning."""

    requires: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        require(name, self.requires, "deepspeed")
        if get_device().type != "cuda":
            raise RuntimeError(
                f"{name} needs GPUs, and this worker was given none\n\n"
                "hint: train with ScalingConfig(use_gpu=True), or use PacelineDDPStrategy"
            )
        super().__init__(*args, **kwargs)


def _worker_init(strategy: object) -> WorkerInit:
    return _require_context(type(strategy).__name__).begin


def silence_other_ranks(strategy: type, rank: int) -> None:
    """Let only rank 0 log. Before a strategy is set up, every process considers itself rank 0."""
    of_package = (
        "pytorch_lightning" if strategy.__module__.endswith("pytorch_lightning_classes") else "lightning.pytorch"
    )
    for name in (f"{of_package}.utilities.rank_zero", "lightning_utilities.core.rank_zero"):
        importlib.import_module(name).rank_zero_only.rank = rank
    if rank > 0:
        for package in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
            logging.getLogger(package).setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", module=r"(pytorch_)?lightning(_fabric)?\b")
