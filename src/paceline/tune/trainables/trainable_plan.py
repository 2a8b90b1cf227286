"""What a search runs for each trial: the trainable given to `Tuner`, turned into a trainer of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from paceline.train.checkpoint import Checkpoint
    from paceline.train.config import RunConfig
    from paceline.train.trainer import DataParallelTrainer


@dataclass(frozen=True)
class TrialBundle:
    """What one process of a trial needs, on one node."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    others: tuple[tuple[str, float], ...] = ()
    """Further resources of a cluster, by name."""


@dataclass(frozen=True)
class TrialNeeds:
    """What a trial needs; allocated completely or not at all."""

    bundles: tuple[TrialBundle, ...]
    is_explicit: bool = False
    """The user specified the number of cores. If not, a trial with more workers than cores may share all of them."""
    strategy: str = "PACK"
    """How the bundles are spread over the nodes of a cluster, as in `ScalingConfig(placement_strategy=...)`."""


class TrainablePlan(Protocol):
    name: str
    """Display name: that of the function or class."""
    run_config: RunConfig | None
    """The trainer's own, if it has one: used if `Tuner` has none."""

    def check(self, run_config: RunConfig) -> None:
        """Raise `ValueError` for settings this cannot run with. `make_trainer` does so too."""
        ...

    def resolve_needs(self, config: Mapping[str, Any]) -> TrialNeeds:
        """Return what a trial with this configuration needs. Raises `ValueError` for one that cannot run at all."""
        ...

    def make_trainer(
        self, config: Mapping[str, Any], run_config: RunConfig, initial: Checkpoint | None
    ) -> DataParallelTrainer:
        """Return the trainer of a trial's run; `initial` is what `get_checkpoint()` returns at its start."""
        ...
