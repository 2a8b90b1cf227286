"""What ends a trial, or the whole search."""

from typing import TYPE_CHECKING

from paceline._core.lazy import on_demand

if TYPE_CHECKING:
    from paceline.tune.stoppers.given import CombinedStopper, FunctionStopper, NoopStopper, stopper_of
    from paceline.tune.stoppers.limits import MaximumIterationStopper, ThresholdStopper, TimeoutStopper
    from paceline.tune.stoppers.plateau import ExperimentPlateauStopper, TrialPlateauStopper
    from paceline.tune.stoppers.stopper import Stopper

__all__ = [
    "CombinedStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "NoopStopper",
    "Stopper",
    "ThresholdStopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
    "stopper_of",
]

__getattr__ = on_demand(
    __name__,
    {
        "paceline.tune.stoppers.given": ("CombinedStopper", "FunctionStopper", "NoopStopper", "stopper_of"),
        "paceline.tune.stoppers.limits": ("MaximumIterationStopper", "ThresholdStopper", "TimeoutStopper"),
        "paceline.tune.stoppers.plateau": ("ExperimentPlateauStopper", "TrialPlateauStopper"),
        "paceline.tune.stoppers.stopper": ("Stopper",),
    },
)
