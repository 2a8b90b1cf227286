"""The loop of a persistent worker: wait for a task, run it, answer, repeat.

The framework is set up once, around all tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from paceline._core.process_setup import flush_stdio
from paceline._core.time_accounting import SETUP, USER_CODE
from paceline._engine.messages import ShardSpec
from paceline._worker import context as worker_context
from paceline._worker.context import StopTraining, WorkerContext
from paceline._worker.main import expose_script_globals, pickle_return_value
from paceline.train.checkpoint import Checkpoint


@dataclass(frozen=True)
class WorkerTask:
    """What one call of `run()` asks every worker to do."""

    function: Callable[..., Any]
    config: Any
    """None: call the function without arguments."""
    checkpoint: Checkpoint | None
    """What `get_checkpoint()` returns until the function has made a checkpoint itself."""
    checkpoints_after: int
    """The task owns only checkpoints of later reports; if negative, all of them."""
    num_earlier_reports: int
    """How many reports were made before it."""
    shards: tuple[ShardSpec, ...] = ()
    data_address: str = ""


def run_task_loop() -> None:
    """The function of a run with persistent workers: runs tasks until an empty one arrives."""
    context = worker_context.current()
    assert context is not None
    # Neither waiting for a task nor preparing one counts as time in the user's code.
    with context.time_accounting.at(SETUP):
        while True:
            order = context.wait_for_task()
            if not order.job:
                raise StopTraining
            value = pickle_return_value(_run_task(context, cloudpickle.loads(order.job)))
            flush_stdio()
            context.send_answer(order, value)


def _run_task(context: WorkerContext, task: WorkerTask) -> Any:
    context.begin_task(
        since=task.checkpoints_after,
        first=task.num_earlier_reports,
        checkpoint=task.checkpoint,
        shards=task.shards,
        data_address=task.data_address,
    )
    context.config = task.config
    expose_script_globals(task.function)
    with context.time_accounting.at(USER_CODE):
        value = task.function() if task.config is None else task.function(task.config)
    context.finish()
    context.end_task()
    return value
