"""The older names of `paceline.train`: `session.report()`, `ScalingConfig`, `RunConfig`, `Checkpoint`, `Result`.

A script that imports these has metrics of the run's own among those it reports: iterations, times, host and process.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy import on_demand

if TYPE_CHECKING:
    from paceline.air import config, session
    from paceline.air.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from paceline.train.checkpoint import Checkpoint
    from paceline.train.result import Result

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "FailureConfig",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "config",
    "session",
]

__getattr__ = on_demand(
    __name__,
    {
        "paceline.air.config": ("CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"),
        "paceline.train.checkpoint": ("Checkpoint",),
        "paceline.train.result": ("Result",),
    },
    submodules=("checkpoint", "config", "result", "session"),
)
