"""The public API for searches: `Tuner` and its configuration, search spaces, and the functions a trial calls.

Names are loaded on first access.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr

if TYPE_CHECKING:
    from paceline.train.checkpoint import Checkpoint
    from paceline.train.placement_group import PlacementGroupFactory
    from paceline.tune.analysis import ExperimentAnalysis
    from paceline.tune.callback import Callback
    from paceline.tune.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig
    from paceline.tune.error import TuneError
    from paceline.tune.experiment import Experiment
    from paceline.tune.progress_reporter import CLIReporter, JupyterNotebookReporter, ProgressReporter
    from paceline.tune.registry import register_env, register_trainable
    from paceline.tune.result_grid import ResultGrid
    from paceline.tune.results.result import Result
    from paceline.tune.schedulers.names import create_scheduler
    from paceline.tune.schedulers.scheduler import TrialScheduler
    from paceline.tune.search.names import create_searcher
    from paceline.tune.search.searcher import Searcher
    from paceline.tune.session import TuneContext, get_checkpoint, get_context, report
    from paceline.tune.space.domains import (
        choice,
        grid_search,
        lograndint,
        loguniform,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        randn,
        sample_from,
        uniform,
    )
    from paceline.tune.stopper import Stopper
    from paceline.tune.trainables.trainable import Trainable
    from paceline.tune.trainables.wrapping import with_parameters, with_resources
    from paceline.tune.trial import Trial
    from paceline.tune.tune import ResumeConfig, run, run_experiments
    from paceline.tune.tune_config import TuneConfig
    from paceline.tune.tuner import Tuner

_NAMES: dict[str, tuple[str, ...]] = {
    "paceline.train.checkpoint": ("Checkpoint",),
    "paceline.tune.analysis": ("ExperimentAnalysis",),
    "paceline.tune.callback": ("Callback",),
    "paceline.tune.config": ("CheckpointConfig", "FailureConfig", "RunConfig", "SyncConfig"),
    "paceline.tune.error": ("TuneError",),
    "paceline.tune.experiment": ("Experiment",),
    "paceline.tune.progress_reporter": ("CLIReporter", "JupyterNotebookReporter", "ProgressReporter"),
    "paceline.tune.registry": ("register_env", "register_trainable"),
    "paceline.tune.results.result": ("Result",),
    "paceline.tune.result_grid": ("ResultGrid",),
    "paceline.tune.tune": ("ResumeConfig", "run", "run_experiments"),
    "paceline.tune.schedulers.names": ("create_scheduler",),
    "paceline.tune.schedulers.scheduler": ("TrialScheduler",),
    "paceline.tune.search.names": ("create_searcher",),
    "paceline.tune.search.searcher": ("Searcher",),
    "paceline.tune.session": ("TuneContext", "get_checkpoint", "get_context", "report"),
    "paceline.tune.space.domains": (
        "choice",
        "grid_search",
        "lograndint",
        "loguniform",
        "qlograndint",
        "qloguniform",
        "qrandint",
        "qrandn",
        "quniform",
        "randint",
        "randn",
        "sample_from",
        "uniform",
    ),
    "paceline.tune.stopper": ("Stopper",),
    "paceline.train.placement_group": ("PlacementGroupFactory",),
    "paceline.tune.trainables.trainable": ("Trainable",),
    "paceline.tune.trainables.wrapping": ("with_parameters", "with_resources"),
    "paceline.tune.trial": ("Trial",),
    "paceline.tune.tune_config": ("TuneConfig",),
    "paceline.tune.tuner": ("Tuner",),
}

__all__ = [
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "Experiment",
    "ExperimentAnalysis",
    "FailureConfig",
    "JupyterNotebookReporter",
    "PlacementGroupFactory",
    "ProgressReporter",
    "Result",
    "ResultGrid",
    "ResumeConfig",
    "RunConfig",
    "Searcher",
    "Stopper",
    "SyncConfig",
    "Trainable",
    "Trial",
    "TrialScheduler",
    "TuneConfig",
    "TuneContext",
    "TuneError",
    "Tuner",
    "choice",
    "create_scheduler",
    "create_searcher",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "register_env",
    "register_trainable",
    "report",
    "run",
    "run_experiments",
    "sample_from",
    "uniform",
    "with_parameters",
    "with_resources",
]

__getattr__ = make_lazy_getattr(
    __name__,
    _NAMES,
    submodules=(
        "analysis",
        "experiment",
        "importance",
        "integration",
        "logger",
        "plots",
        "progress_reporter",
        "registry",
        "result",
        "schedulers",
        "search",
        "stopper",
    ),
)
