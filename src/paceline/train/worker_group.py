"""Custom backends: run the hooks of a user's `Backend` before and after training, on all workers at once.

The hooks run in the worker of rank 0, the leader: it sends the others the function to call and receives what each
returned. They communicate through the driver's barriers, so this works on any engine and opens no connection. A
function that raises fails its worker and thus the attempt, as in training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import cloudpickle

from paceline._core.arguments import check_int

if TYPE_CHECKING:
    from paceline._worker.context import WorkerContext
    from paceline.train.backend import Backend, BackendConfig

_NO_MORE_ORDERS = b""
"""Sent by the leader when there are no more calls."""


class WorkerGroup:
    """The workers of a run, as a `Backend` sees them; `len(worker_group)` is their number."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def __len__(self) -> int:
        return self._context.begin.world_size

    @property
    def num_workers(self) -> int:
        return len(self)

    def execute(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function on every worker at the same time, and return the results by rank."""
        return self._execute_on(None, func, args, kwargs)

    def execute_single(self, worker_index: int, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on one worker, and return its result."""
        check_int("worker_index", worker_index, at_least=0, at_most=len(self) - 1)
        return self._execute_on(worker_index, func, args, kwargs)[worker_index]

    def _execute_on(self, rank: int | None, func: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
        order = cloudpickle.dumps((rank, func, args, kwargs))
        self._context.join(order)
        return _execute_order(self._context, order)


@contextlib.contextmanager
def run_backend(context: WorkerContext, backend: Backend, config: BackendConfig) -> Iterator[None]:
    """Run a backend's hooks around a worker's function: start, training start, shutdown."""
    group = WorkerGroup(context)
    _run_hooks(group, config, backend.on_start, backend.on_training_start)
    with config.train_func_context():
        yield
    # Not after a failure: the other workers are being stopped and would not answer.
    _run_hooks(group, config, backend.on_shutdown)


def _run_hooks(group: WorkerGroup, config: BackendConfig, *hooks: Callable[[WorkerGroup, Any], None]) -> None:
    """In the leader, run the hooks, which make calls; in the other workers, carry these out."""
    context = group._context
    if context.begin.rank == 0:
        for hook in hooks:
            hook(group, config)
        context.join(_NO_MORE_ORDERS)
    else:
        while order := context.join(b""):
            _execute_order(context, order)


def _execute_order(context: WorkerContext, order: bytes) -> list[Any]:
    rank, func, args, kwargs = cloudpickle.loads(order)
    result = func(*args, **kwargs) if rank in (None, context.begin.rank) else None
    return [cloudpickle.loads(each) for each in context.gather(cloudpickle.dumps(result))]
