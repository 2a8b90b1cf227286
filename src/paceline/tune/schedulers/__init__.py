"""Schedulers, which decide which trials continue: FIFO, ASHA, HyperBand, median stopping, PBT, PB2."""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr

if TYPE_CHECKING:
    from paceline.tune.schedulers.hyperband import (
        ASHAScheduler,
        AsyncHyperBandScheduler,
        HyperBandForBOHB,
        HyperBandScheduler,
    )
    from paceline.tune.schedulers.median import MedianStoppingRule
    from paceline.tune.schedulers.names import create_scheduler
    from paceline.tune.schedulers.pb2 import PB2
    from paceline.tune.schedulers.pbt import PopulationBasedTraining, PopulationBasedTrainingReplay
    from paceline.tune.schedulers.resource_changing_scheduler import ResourceChangingScheduler
    from paceline.tune.schedulers.scheduler import FIFOScheduler, TrialScheduler

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PB2",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "ResourceChangingScheduler",
    "TrialScheduler",
    "create_scheduler",
]

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.tune.schedulers.hyperband": (
            "ASHAScheduler",
            "AsyncHyperBandScheduler",
            "HyperBandForBOHB",
            "HyperBandScheduler",
        ),
        "paceline.tune.schedulers.median": ("MedianStoppingRule",),
        "paceline.tune.schedulers.pb2": ("PB2",),
        "paceline.tune.schedulers.pbt": ("PopulationBasedTraining", "PopulationBasedTrainingReplay"),
        "paceline.tune.schedulers.resource_changing_scheduler": ("ResourceChangingScheduler",),
        "paceline.tune.schedulers.names": ("create_scheduler",),
        "paceline.tune.schedulers.scheduler": ("FIFOScheduler", "TrialScheduler"),
    },
)
