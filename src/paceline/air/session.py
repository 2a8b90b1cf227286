"""What a train function called before `paceline.train` had these: `report`, `get_checkpoint`, `get_world_rank` ..."""

from __future__ import annotations

from typing import Any

from paceline._worker import context as worker_context
from paceline._worker.context import Context
from paceline.air.autofilled import filled, trial_id
from paceline.train import session
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import TrialResources, get_checkpoint, get_dataset_shard

__all__ = [
    "get_checkpoint",
    "get_dataset_shard",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "get_world_rank",
    "get_world_size",
    "report",
]


def report(metrics: dict[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Record metrics, and optionally a checkpoint, as `paceline.train.report` does.

    The run's own are added: `training_iteration`, `time_total_s`, `hostname`, `pid`, `config` and so on.
    """
    if not isinstance(metrics, dict):
        raise TypeError(f"metrics={metrics!r} is not a dict")
    session.report(filled(_context(), metrics, has_checkpoint=checkpoint is not None), checkpoint=checkpoint)


def get_world_rank() -> int:
    """The number of this worker among all."""
    return session.get_context().get_world_rank()


def get_world_size() -> int:
    """How many workers there are."""
    return session.get_context().get_world_size()


def get_local_rank() -> int:
    """The number of this worker among those on its machine."""
    return session.get_context().get_local_rank()


def get_local_world_size() -> int:
    """How many workers there are on its machine."""
    return session.get_context().get_local_world_size()


def get_node_rank() -> int:
    """The number of its machine among all."""
    return session.get_context().get_node_rank()


def get_experiment_name() -> str:
    """The name of the run."""
    return session.get_context().get_experiment_name()


def get_trial_name() -> str:
    """A run is one trial: its name."""
    return session.get_context().get_trial_name()


def get_trial_id() -> str:
    """The same for a run in each of its attempts, and on all ranks."""
    return trial_id(_context().begin)


def get_trial_dir() -> str:
    """The run's directory, or its address in a store."""
    return session.get_context().get_trial_dir()


def get_trial_resources() -> TrialResources:
    """What this worker has: its threads and its accelerators."""
    return session.get_context().get_trial_resources()


def _context() -> Context:
    session.get_context()  # Says what to do where there is none.
    context = worker_context.current()
    assert context is not None
    return context
