"""`create_scheduler`: schedulers by their short names."""

from __future__ import annotations

from typing import Any

from paceline._core.arguments import bad_value, join_or
from paceline.tune import schedulers
from paceline.tune.schedulers.scheduler import TrialScheduler

SCHEDULERS = {
    "fifo": "FIFOScheduler",
    "async_hyperband": "AsyncHyperBandScheduler",
    "asynchyperband": "AsyncHyperBandScheduler",
    "asha": "ASHAScheduler",
    "median_stopping_rule": "MedianStoppingRule",
    "medianstopping": "MedianStoppingRule",
    "hyperband": "HyperBandScheduler",
    "hb_bohb": "HyperBandForBOHB",
    "pbt": "PopulationBasedTraining",
    "pbt_replay": "PopulationBasedTrainingReplay",
    "pb2": "PB2",
    "resource_changing": "ResourceChangingScheduler",
}


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """Return a scheduler by its short name, such as `"async_hyperband"`, with these arguments."""
    name = scheduler.lower() if isinstance(scheduler, str) else ""
    if name not in SCHEDULERS:
        raise bad_value("scheduler", join_or(map(repr, SCHEDULERS)), scheduler)
    made: TrialScheduler = getattr(schedulers, SCHEDULERS[name])(**kwargs)
    return made
