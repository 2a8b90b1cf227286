"""The older functions for use in a train function: `report`, `get_checkpoint`, `get_world_rank` and others.

A report also has automatic metrics. The iteration count and total time continue across restarts: they are read from the
checkpoint the worker started from.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from paceline._core.lazy_imports import explain_module
from paceline._core.plain_values import decode_plain, to_plain
from paceline._engine.messages import WorkerInit
from paceline._worker import context as worker_context
from paceline._worker.context import WorkerContext
from paceline.train import session
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import TrialResources, get_checkpoint, get_dataset_shard

__all__ = [
    "get_checkpoint",
    "get_dataset_shard",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_metadata",
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
    session.report(_add_auto_metrics(_context(), metrics, has_checkpoint=checkpoint is not None), checkpoint=checkpoint)


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
    return session.get_context().get_trial_id()


def get_metadata() -> dict[str, Any]:
    """Return the trainer's `metadata`."""
    return session.get_context().get_metadata()


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


@dataclass
class _IterationCounter:
    """Counts the iterations of one worker since it started an attempt, or a task of a persistent worker."""

    begin: WorkerInit
    previous_iterations: int
    previous_total_s: float
    began_s: float
    last_report_s: float
    num_since_start: int = 0

    @classmethod
    def from_context(cls, context: WorkerContext) -> _IterationCounter:
        resume = context.begin.resume
        before = decode_plain(resume.metrics) if resume is not None else {}
        iteration = before.get("training_iteration", resume.seq if resume is not None else 0)
        return cls(context.begin, iteration, before.get("time_total_s", 0.0), context.started_at, context.started_at)


_current: _IterationCounter | None = None


def _add_auto_metrics(context: WorkerContext, metrics: dict[str, Any], *, has_checkpoint: bool) -> dict[str, Any]:
    """Add the automatic metrics. Metrics the user reports under the same names take precedence."""
    global _current
    if _current is None or _current.begin is not context.begin:
        _current = _IterationCounter.from_context(context)
    counted, now, now_s = _current, time.time(), time.monotonic()
    took_s, counted.last_report_s = now_s - counted.last_report_s, now_s
    counted.num_since_start += 1
    since_s = counted.last_report_s - counted.began_s
    iteration = counted.previous_iterations + counted.num_since_start
    config = {"train_loop_config": _to_reportable(context.config)} if context.config else {}
    automatic = {
        "_timestamp": int(now),
        "_time_this_iter_s": took_s,
        "_training_iteration": iteration,
        "time_this_iter_s": took_s,
        "should_checkpoint": has_checkpoint,
        "done": False,
        "timesteps_total": None,
        "episodes_total": None,
        "training_iteration": iteration,
        "trial_id": session.TrainContext(context).get_trial_id(),
        "experiment_id": session.get_experiment_id(context.begin),
        "date": time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now)),
        "timestamp": int(now),
        "time_total_s": counted.previous_total_s + since_s,
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "node_ip": context.begin.node_address,
        "config": config,
        "time_since_restore": since_s,
        "timesteps_since_restore": 0,
        "iterations_since_restore": counted.num_since_start,
        "experiment_tag": "0",
    }
    return {**automatic, **metrics}


def _to_reportable(value: Any) -> Any:
    """Convert a configuration for use as metrics; values without a plain form become their `repr`."""
    if isinstance(value, dict):
        return {str(name): _to_reportable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_reportable(each) for each in value]
    try:
        to_plain(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


explain_module(__name__)
