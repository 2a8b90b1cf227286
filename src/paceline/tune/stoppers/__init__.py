"""Stoppers, which end a trial or the whole search."""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr

if TYPE_CHECKING:
    from paceline.tune.stoppers.combined import CombinedStopper, FunctionStopper, NoopStopper, stopper_of
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

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.tune.stoppers.combined": ("CombinedStopper", "FunctionStopper", "NoopStopper", "stopper_of"),
        "paceline.tune.stoppers.limits": ("MaximumIterationStopper", "ThresholdStopper", "TimeoutStopper"),
        "paceline.tune.stoppers.plateau": ("ExperimentPlateauStopper", "TrialPlateauStopper"),
        "paceline.tune.stoppers.stopper": ("Stopper",),
    },
)
