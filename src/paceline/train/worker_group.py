"""Custom backends: what a user's `Backend` does before and after training, on all workers at once.

A backend's methods run in the worker of rank 0, which leads: it tells the others which function to call, and hears what
each returned. They go by the barriers that the driver keeps, so this works on any engine and opens no connection. A
function that raises fails its own worker, and with it the attempt, as it does in training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:
    from paceline._worker.context import Context
    from paceline.train.backend import Backend, BackendConfig

_DONE = b""
"""The leader has no further orders."""


class WorkerGroup:
    """The workers of a run, as a `Backend` sees them: `len(worker_group)` of them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __len__(self) -> int:
        return self._context.begin.world_size

    @property
    def num_workers(self) -> int:
        return len(self)

    def execute(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function on every worker, at the same time; returns what each returned, by rank."""
        return self._ordered(None, func, args, kwargs)

    def execute_single(self, worker_index: int, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on one worker; returns what it returned."""
        if not 0 <= worker_index < len(self):
            raise ValueError(
                f"worker_index={worker_index!r} is none of the {len(self)} workers: use 0 to {len(self) - 1}"
            )
        return self._ordered(worker_index, func, args, kwargs)[worker_index]

    def _ordered(self, rank: int | None, func: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
        order = cloudpickle.dumps((rank, func, args, kwargs))
        self._context.join(order)
        return _obeyed(self._context, order)


@contextlib.contextmanager
def led(context: Context, backend: Backend, config: BackendConfig) -> Iterator[None]:
    """A backend around a worker's function: started, told that training begins, shut down after it."""
    group = WorkerGroup(context)
    leads = context.begin.rank == 0
    with _obeying(context, leads):
        if leads:
            backend.on_start(group, config)
            backend.on_training_start(group, config)
    with config.train_func_context():
        yield
    # Not after a failure: the other workers are being ended, and nobody would answer.
    with _obeying(context, leads):
        if leads:
            backend.on_shutdown(group, config)


@contextlib.contextmanager
def _obeying(context: Context, leads: bool) -> Iterator[None]:
    """The leader's orders are given in the block; the others carry them out instead of it."""
    if leads:
        yield
        context.join(_DONE)
        return
    yield
    while order := context.join(b""):
        _obeyed(context, order)


def _obeyed(context: Context, order: bytes) -> list[Any]:
    rank, func, args, kwargs = cloudpickle.loads(order)
    mine = func(*args, **kwargs) if rank in (None, context.begin.rank) else None
    return [cloudpickle.loads(given) for given in context.gather(cloudpickle.dumps(mine))]
