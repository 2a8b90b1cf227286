"""What a search runs for each of its trials: whatever was given to `Tuner`, made into a trainer of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from paceline.train.checkpoint import Checkpoint
    from paceline.train.config import RunConfig
    from paceline.train.trainer import DataParallelTrainer


@dataclass(frozen=True)
class Bundle:
    """What one process of a trial needs, in one place."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    others: tuple[tuple[str, float], ...] = ()
    """Further resources of a cluster, by name."""


@dataclass(frozen=True)
class TrialNeeds:
    """What a trial needs, all of it or nothing."""

    bundles: tuple[Bundle, ...]
    is_explicit: bool = False
    """The user said how many cores. If not, a trial of more workers than there are cores may have them all."""
    strategy: str = "PACK"
    """How the bundles lie on the nodes of a cluster, as in `ScalingConfig(placement_strategy=...)`."""


class Planned(Protocol):
    name: str
    """What was given, for a person: the name of a function or class."""
    run_config: RunConfig | None
    """That of a trainer, if it was given one: what holds where `Tuner` has none of its own."""

    def check(self, run_config: RunConfig) -> None:
        """Raise `ValueError` for what this cannot be run with. `trainer` does so, too."""
        ...

    def needs(self, config: Mapping[str, Any]) -> TrialNeeds:
        """Of a trial with this configuration. Raises `ValueError` for one that cannot be run at all."""
        ...

    def trainer(
        self, config: Mapping[str, Any], run_config: RunConfig, initial: Checkpoint | None
    ) -> DataParallelTrainer:
        """The trainer of a trial's run; `initial` is what `get_checkpoint()` gives at its beginning."""
        ...
