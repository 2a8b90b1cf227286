"""What makes a strategy of Lightning's one of ours: it takes the ranks, the device and the process group as they are.

A strategy of Lightning's looks at the machine and at environment variables, may start processes, and may make a process
group. Here all of that has been done around the train function. Nothing of Lightning is imported here: these classes
stand before Lightning's in `of_lightning` and `of_pytorch_lightning`.
"""

from __future__ import annotations

import importlib
import logging
import signal
import threading
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from paceline._worker.signals import NOTICES
from paceline.train.backend import require
from paceline.train.lightning.environment import Environment
from paceline.train.session import _context
from paceline.train.torch.devices import get_device

if TYPE_CHECKING:
    import torch

    from paceline._engine.messages import Begin


class InOurGroup:
    """Stands before a strategy of Lightning's."""

    environment: ClassVar[type[Environment]]
    _cluster_environment: Environment | None = None
    _handlers: dict[int, Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        keep_quiet(type(self), _begin(self).rank)
        super().__init__(*args, **kwargs)

    @property
    def cluster_environment(self) -> Environment | None:
        return self._cluster_environment

    @cluster_environment.setter
    def cluster_environment(self, environment: Any) -> None:
        if environment is None or isinstance(environment, Environment):
            self._cluster_environment = environment
        elif type(environment).__module__.startswith(("lightning.", "lightning_fabric.", "pytorch_lightning.")):
            # What Lightning found by looking around, as none was asked for.
            self._cluster_environment = self.environment()
        else:
            raise ValueError(
                f"{type(environment).__name__} does not know the workers of this run\n\n"
                "hint: leave it out of Trainer(plugins=...), or give PacelineLightningEnvironment() there"
            )

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The device of this process: of others Lightning need not know."""
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
        return _begin(self).world_size

    @property
    def global_rank(self) -> int:
        return _begin(self).rank

    @property
    def local_rank(self) -> int:
        return _begin(self).local_rank

    @property
    def node_rank(self) -> int:
        return _begin(self).node_rank

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def _configure_launcher(self) -> None:
        """All processes are there: none is started."""
        self._launcher = None

    def setup(self, trainer: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {signum: signal.getsignal(signum) for signum in NOTICES}
        super().setup(trainer)  # type: ignore[misc]

    def on_train_start(self) -> None:
        self._put_back_handlers()
        super().on_train_start()  # type: ignore[misc]

    def on_validation_start(self) -> None:
        self._put_back_handlers()
        super().on_validation_start()  # type: ignore[misc]

    def on_test_start(self) -> None:
        self._put_back_handlers()
        super().on_test_start()  # type: ignore[misc]

    def on_predict_start(self) -> None:
        self._put_back_handlers()
        super().on_predict_start()  # type: ignore[misc]

    def _put_back_handlers(self) -> None:
        """Lightning answers a SIGTERM with a collective from within its handler, and ends: a hang, or lost work.

        Ours is a notice of preemption, upon which all ranks stop at the same report. Lightning sets its handler between
        the set-up of a strategy and the start of a loop.
        """
        for signum, handler in (self._handlers or {}).items():
            signal.signal(signum, handler)
        self._handlers = None


class OnGpus:
    """Refuses a worker without a GPU at once. What the strategy needs beside Lightning is in `requires`."""

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


def _begin(strategy: object) -> Begin:
    return _context(type(strategy).__name__).begin


def keep_quiet(strategy: type, rank: int) -> None:
    """What Lightning has to say, it says on rank 0 only. Before a strategy is set up it takes itself for that one."""
    of_package = "pytorch_lightning" if strategy.__module__.endswith("of_pytorch_lightning") else "lightning.pytorch"
    for name in (f"{of_package}.utilities.rank_zero", "lightning_utilities.core.rank_zero"):
        importlib.import_module(name).rank_zero_only.rank = rank
    if rank > 0:
        for package in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
            logging.getLogger(package).setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", module=r"(pytorch_)?lightning(_fabric)?\b")
