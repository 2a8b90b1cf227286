"""Metrics that are added to each report of `paceline.air.session`: iterations, times, host, process.

The iteration count and total time continue across restarts: they are read from the checkpoint the worker started from.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from paceline._core.plain_values import decode_plain, to_plain
from paceline._engine.messages import WorkerInit
from paceline._worker.context import WorkerContext


@dataclass
class IterationCounter:
    """Counts the iterations of one worker since it started an attempt, or a task of a persistent worker."""

    begin: WorkerInit
    previous_iterations: int
    previous_total_s: float
    began_s: float
    last_report_s: float
    num_since_start: int = 0

    @classmethod
    def from_context(cls, context: WorkerContext) -> IterationCounter:
        resume = context.begin.resume
        before = decode_plain(resume.metrics) if resume is not None else {}
        iteration = before.get("training_iteration", resume.seq if resume is not None else 0)
        return cls(context.begin, iteration, before.get("time_total_s", 0.0), context.started_at, context.started_at)


_current: IterationCounter | None = None


def add_auto_metrics(context: WorkerContext, metrics: dict[str, Any], *, has_checkpoint: bool) -> dict[str, Any]:
    """Add the automatic metrics. Metrics the user reports under the same names take precedence."""
    global _current
    if _current is None or _current.begin is not context.begin:
        _current = IterationCounter.from_context(context)
    counted, now, now_s = _current, time.time(), time.monotonic()
    took_s, counted.last_report_s = now_s - counted.last_report_s, now_s
    counted.num_since_start += 1
    since_s = counted.last_report_s - counted.began_s
    iteration = counted.previous_iterations + counted.num_since_start
    config = {"train_loop_config": to_reportable(context.config)} if context.config else {}
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
        "trial_id": trial_id(context.begin),
        "experiment_id": experiment_id(context.begin),
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


def experiment_id(begin: WorkerInit) -> str:
    """Return an ID that is the same for every script, attempt and rank of a run."""
    return hashlib.sha256(f"{begin.store or ''} {begin.run_path}".encode()).hexdigest()[:32]


def trial_id(begin: WorkerInit) -> str:
    return f"{experiment_id(begin)[:5]}_00000"


def to_reportable(value: Any) -> Any:
    """Convert a configuration for use as metrics; values without a plain form become their `repr`."""
    if isinstance(value, dict):
        return {str(name): to_reportable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_reportable(each) for each in value]
    try:
        to_plain(value)
    except (TypeError, ValueError):
        return repr(value)
    return value
