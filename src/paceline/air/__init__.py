"""Older names for `paceline.train`: `session.report()`, `ScalingConfig`, `RunConfig`, `Checkpoint`, `Result`.

Reports made through these names also contain automatic metrics: iterations, times, host and process.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr

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

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.air.config": ("CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"),
        "paceline.train.checkpoint": ("Checkpoint",),
        "paceline.train.result": ("Result",),
    },
    submodules=("checkpoint", "config", "result", "session"),
)
