"""The older functions for use in a train function: `report`, `get_checkpoint`, `get_world_rank` and others."""

from __future__ import annotations

from typing import Any

from paceline._worker import context as worker_context
from paceline._worker.context import WorkerContext
from paceline.air.auto_metrics import add_auto_metrics, trial_id
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

    Adds automatic metrics: `training_iteration`, `time_total_s`, `hostname`, `pid`, `config` and others.
    """
    if not isinstance(metrics, dict):
        raise TypeError(f"metrics must be a dict, got {metrics!r}")
    session.report(add_auto_metrics(_context(), metrics, has_checkpoint=checkpoint is not None), checkpoint=checkpoint)


def get_world_rank() -> int:
    """Return the rank of this worker."""
    return session.get_context().get_world_rank()


def get_world_size() -> int:
    """Return the number of workers."""
    return session.get_context().get_world_size()


def get_local_rank() -> int:
    """Return the rank of this worker on its node."""
    return session.get_context().get_local_rank()


def get_local_world_size() -> int:
    """Return the number of workers on this node."""
    return session.get_context().get_local_world_size()


def get_node_rank() -> int:
    """Return the rank of this node."""
    return session.get_context().get_node_rank()


def get_experiment_name() -> str:
    """Return the name of the run."""
    return session.get_context().get_experiment_name()


def get_trial_name() -> str:
    """Return the name of the run, which is also its trial name."""
    return session.get_context().get_trial_name()


def get_trial_id() -> str:
    """Return an ID that is the same for all attempts and ranks of a run."""
    return trial_id(_context().begin)


def get_trial_dir() -> str:
    """Return the run's directory, or its address in a store."""
    return session.get_context().get_trial_dir()


def get_trial_resources() -> TrialResources:
    """Return the resources of this worker: its threads and accelerators."""
    return session.get_context().get_trial_resources()


def _context() -> WorkerContext:
    session.get_context()  # Raises with a hint outside of a worker.
    context = worker_context.current()
    assert context is not None
    return context
