"""prepare_trainer: check that a Lightning trainer fits the workers of this run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from paceline.train.lightning.environment import ClusterEnvironmentMixin
from paceline.train.lightning.strategy import PacelineStrategyMixin
from paceline.train.session import _require_context

if TYPE_CHECKING:
    from paceline._engine.messages import WorkerInit

T = TypeVar("T")

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_HOW = "strategy=PacelineDDPStrategy(), plugins=[PacelineLightningEnvironment()], accelerator='auto', devices='auto'"


def prepare_trainer(trainer: T) -> T:
    """Check that a Lightning trainer was created for the workers of this run, and return it.

    The error says what to change. The strategy must be one of ours, because only those keep the ranks, devices and
    process group of the run.
    """
    begin = _require_context("prepare_trainer").begin
    if not any(cls.__module__.startswith(_PACKAGES) and cls.__name__ == "Trainer" for cls in type(trainer).__mro__):
        raise TypeError(f"trainer={trainer!r} is not a Trainer of lightning.pytorch")
    problem = _find_problem(trainer, begin)
    if problem is not None:
        raise ValueError(f"{problem}\n\nhint: Trainer({_HOW})")
    return trainer


def _find_problem(trainer: Any, begin: WorkerInit) -> str | None:
    strategy = trainer.strategy
    if not isinstance(strategy, PacelineStrategyMixin):
        return (
            f"strategy={type(strategy).__name__} is Lightning's own, and looks for ranks and devices by itself: "
            f"each of the {begin.world_size} workers would train alone, or start processes of its own"
        )
    if not isinstance(strategy.cluster_environment, ClusterEnvironmentMixin):
        return f"plugins=[{type(strategy.cluster_environment).__name__}()] does not know the workers of this run"
    if trainer.num_nodes not in (1, begin.num_nodes):
        return f"num_nodes={trainer.num_nodes}, and the workers of this run are on {begin.num_nodes}"
    asked = _requested_devices(trainer)
    if asked is not None and asked not in (1, begin.local_world_size):
        return (
            f"devices={asked}, but each worker is one process with one device, {strategy.root_device}: "
            "ScalingConfig(num_workers=...) says how many there are"
        )
    return None


def _requested_devices(trainer: Any) -> int | None:
    """Return the number passed as `Trainer(devices=...)`; None if it means all devices."""
    asked = getattr(trainer._accelerator_connector, "_devices_flag", None)
    number = asked if isinstance(asked, int) else len(asked) if isinstance(asked, list) else None
    return None if number == trainer.accelerator.auto_device_count() else number
