"""In a worker that stays: wait for an order, do it, answer, and wait for the next.

The framework is set up once, around all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from paceline._core.process import flush_stdio
from paceline._core.spending import OWN, SETUP
from paceline._engine.messages import Shard
from paceline._worker import context as worker_context
from paceline._worker.context import Context, StopTraining
from paceline._worker.main import pickled_value
from paceline._worker.script import stand_for_script
from paceline.train.checkpoint import Checkpoint


@dataclass(frozen=True)
class Task:
    """What one call of `run()` asks of every worker."""

    function: Callable[..., Any]
    config: Any
    """None: the function is called without."""
    checkpoint: Checkpoint | None
    """What `get_checkpoint()` gives until the function has made one itself."""
    since: int
    """Only checkpoints of later reports are its own; below 0 all are."""
    first: int
    """How many reports were made before it."""
    shards: tuple[Shard, ...] = ()
    data_address: str = ""


def stand_by() -> None:
    """The function of a run whose workers stay, until an order without a task comes."""
    context = worker_context.current()
    assert context is not None
    # To stand by is no work of the user's code, nor is what is done around an order.
    with context.spending.at(SETUP):
        while True:
            order = context.next_order()
            if not order.job:
                raise StopTraining
            value = pickled_value(_done(context, cloudpickle.loads(order.job)))
            flush_stdio()
            context.answer(order, value)


def _done(context: Context, task: Task) -> Any:
    context.take_up(
        since=task.since, first=task.first, given=task.checkpoint, shards=task.shards, data_address=task.data_address
    )
    context.config = task.config
    stand_for_script(task.function)
    with context.spending.at(OWN):
        value = task.function() if task.config is None else task.function(task.config)
    context.finish()
    context.put_down()
    return value
