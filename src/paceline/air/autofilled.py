"""The metrics that a run itself adds to each report of `paceline.air.session`: iterations, times, host, process.

Iterations and the total time go on over a restart: they are read from the checkpoint that the worker began from.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline._core.plain import plain, unplain
from paceline._engine.messages import Begin
from paceline._worker.context import Context


@dataclass
class Iterations:
    """Of one worker, since it began: an attempt, or one order of a worker that stays."""

    begin: Begin
    iteration: int
    """How many there were before."""
    total_s: float
    """How long they took."""
    began: float
    last: float
    since: int = 0

    @classmethod
    def of(cls, context: Context) -> Iterations:
        resume = context.begin.resume
        before = unplain(msgspec.json.decode(resume.metrics)) if resume is not None else {}
        iteration = before.get("training_iteration", resume.seq if resume is not None else 0)
        return cls(context.begin, iteration, before.get("time_total_s", 0.0), context.began, context.began)

    def next(self, now: float) -> float:
        """Count one on; returns how long it took."""
        took_s, self.last = now - self.last, now
        self.since += 1
        return took_s


_current: Iterations | None = None


def filled(context: Context, metrics: dict[str, Any], *, has_checkpoint: bool) -> dict[str, Any]:
    """The metrics with those of the run added; what the user reports under such a name is left as it is."""
    global _current
    if _current is None or _current.begin is not context.begin:
        _current = Iterations.of(context)
    counted, now = _current, time.time()
    took_s = counted.next(time.monotonic())
    since_s = counted.last - counted.began
    iteration = counted.iteration + counted.since
    config = {"train_loop_config": shown(context.config)} if context.config else {}
    own = {
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
        "time_total_s": counted.total_s + since_s,
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "node_ip": context.begin.node_address,
        "config": config,
        "time_since_restore": since_s,
        "timesteps_since_restore": 0,
        "iterations_since_restore": counted.since,
        "experiment_tag": "0",
    }
    return {**own, **metrics}


def experiment_id(begin: Begin) -> str:
    """The same for a run whichever script, attempt or rank asks."""
    return hashlib.sha256(f"{begin.store or ''} {begin.run_path}".encode()).hexdigest()[:32]


def trial_id(begin: Begin) -> str:
    return f"{experiment_id(begin)[:5]}_00000"


def shown(value: Any) -> Any:
    """A configuration as metrics can hold it: what has no plain form by its representation."""
    if isinstance(value, dict):
        return {str(name): shown(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    try:
        plain(value)
    except (TypeError, ValueError):
        return repr(value)
    return value
