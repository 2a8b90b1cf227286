"""Make a Lightning trainer use the ranks, device and process group of the run.

Lightning inspects the machine and the environment, may start processes, and may create a process group. Here the
backend has already done all that: a mixin each for the cluster environment and the strategy says so, and
`prepare_trainer` checks that a trainer uses them. This module does not import Lightning: `lightning_classes` and
`pytorch_lightning_classes` combine the mixins with its classes.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paceline._worker import context as worker_context
from paceline._worker.signals import PREEMPTION_SIGNALS
from paceline.train.backend import require
from paceline.train.session import _require_context
from paceline.train.torch.acceleration import get_device

if TYPE_CHECKING:
    import torch

    from paceline._engine.messages import WorkerInit


class ClusterEnvironmentMixin:
    """Lightning uses the ranks and world size of the run and starts no processes.

    Our strategies include it; `Trainer(plugins=[PacelineLightningEnvironment()])` is equivalent.
    """

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        """Never detected automatically: the user or one of our strategies provides it."""
        return False

    def world_size(self) -> int:
        return _worker_init(self).world_size

    def set_world_size(self, size: int) -> None:
        """Ignored: the run determines the world size."""

    def global_rank(self) -> int:
        return _worker_init(self).rank

    def set_global_rank(self, rank: int) -> None:
        """Ignored: the run determines the rank."""

    def local_rank(self) -> int:
        return _worker_init(self).local_rank

    def node_rank(self) -> int:
        return _worker_init(self).node_rank

    def teardown(self) -> None:
        """Keep the process group: it belongs to the train function until that returns."""


class PacelineStrategyMixin:
    """Put in front of a Lightning strategy."""

    environment: ClassVar[type[ClusterEnvironmentMixin]]
    _cluster_environment: ClusterEnvironmentMixin | None = None
    _handlers: dict[int, Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if worker_context.current() is not None:  # Else it is made in the script, and used in the workers.
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
                "hint: leave it out of Trainer(plugins=...), or pass PacelineLightningEnvironment() there"
            )

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The device of this process; Lightning does not need the others."""
        return [get_device()]

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device] | None) -> None:
        if devices and list(devices) != self.parallel_devices:
            raise ValueError(
                f"parallel_devices must be this worker's {get_device()}, got {devices!r}\n\n"
                "hint: leave it out; ScalingConfig(use_gpu=..., resources_per_worker=...) assigns devices"
            )

    @property
    def root_device(self) -> torch.device:
        return get_device()

    world_size = property(lambda self: _worker_init(self).world_size)
    global_rank = property(lambda self: _worker_init(self).rank)
    local_rank = property(lambda self: _worker_init(self).local_rank)
    node_rank = property(lambda self: _worker_init(self).node_rank)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def _configure_launcher(self) -> None:
        """All processes already exist, so no launcher is needed."""
        silence_other_ranks(type(self), _worker_init(self).rank)
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
        if worker_context.current() is not None and get_device().type != "cuda":
            raise RuntimeError(
                f"{name} needs a GPU, but this worker has none\n\n"
                "hint: train with ScalingConfig(use_gpu=True), or use PacelineDDPStrategy"
            )
        super().__init__(*args, **kwargs)


def _worker_init(user: object) -> WorkerInit:
    return _require_context(type(user).__name__).begin


def silence_other_ranks(strategy: type, rank: int) -> None:
    """Let only rank 0 log. Before a strategy is set up, every process considers itself rank 0."""
    is_other_package = any(base.__module__.startswith("pytorch_lightning.") for base in strategy.__mro__)
    package_name = "pytorch_lightning" if is_other_package else "lightning.pytorch"
    for name in (f"{package_name}.utilities.rank_zero", "lightning_utilities.core.rank_zero"):
        importlib.import_module(name).rank_zero_only.rank = rank
    if rank > 0:
        for package in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
            logging.getLogger(package).setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", module=r"(pytorch_)?lightning(_fabric)?\b")


T = TypeVar("T")

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_ARGUMENTS = (
    "strategy=PacelineDDPStrategy(), plugins=[PacelineLightningEnvironment()], accelerator='auto', devices='auto'"
)


def prepare_trainer(trainer: T) -> T:
    """Check that a Lightning trainer was created for the workers of this run, and return it.

    The error says what to change. The strategy must be one of ours, because only those keep the ranks, devices and
    process group of the run.
    """
    begin = _require_context("prepare_trainer").begin
    if not any(cls.__module__.startswith(_PACKAGES) and cls.__name__ == "Trainer" for cls in type(trainer).__mro__):
        raise TypeError(f"trainer must be a lightning.pytorch.Trainer, got {trainer!r}")
    problem = _find_problem(trainer, begin)
    if problem is not None:
        raise ValueError(f"{problem}\n\nhint: Trainer({_ARGUMENTS})")
    return trainer


def _find_problem(trainer: Any, begin: WorkerInit) -> str | None:
    strategy = trainer.strategy
    if not isinstance(strategy, PacelineStrategyMixin):
        return (
            f"strategy={type(strategy).__name__} ignores the ranks and devices of this run: each of the "
            f"{begin.world_size} workers would train alone or start its own processes"
        )
    if not isinstance(strategy.cluster_environment, ClusterEnvironmentMixin):
        return f"plugins=[{type(strategy.cluster_environment).__name__}()] does not know the workers of this run"
    if trainer.num_nodes not in (1, begin.num_nodes):
        return f"num_nodes={trainer.num_nodes}, but the workers of this run are on {begin.num_nodes}"
    num_devices = _requested_devices(trainer)
    if num_devices is not None and num_devices not in (1, begin.local_world_size):
        return (
            f"devices={num_devices}, but each worker is one process with one device, {strategy.root_device}; "
            "ScalingConfig(num_workers=...) sets their number"
        )
    return None


def _requested_devices(trainer: Any) -> int | None:
    """Return the number passed as `Trainer(devices=...)`; None if it means all devices."""
    flag = getattr(trainer._accelerator_connector, "_devices_flag", None)
    number = flag if isinstance(flag, int) else len(flag) if isinstance(flag, list) else None
    return None if number == trainer.accelerator.auto_device_count() else number
