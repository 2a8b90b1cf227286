"""Where a user's function runs: next to the readers, or in processes of its own.

A class is instantiated once in each process of its pool and called for every batch. A plain function needs no pool: it
runs where the rows are, which saves a transfer to another process.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from paceline._core.arguments import bad_value, check_int, check_number
from paceline.data.context import DataContext
from paceline.data.planning.plan import PoolSpec


@dataclass(frozen=True)
class TaskPoolStrategy:
    """For functions: they run where the rows are, in at most `size` processes at a time."""

    size: int | None = None

    def __post_init__(self) -> None:
        check_int("TaskPoolStrategy.size", self.size, at_least=1, optional=True)


@dataclass(frozen=True)
class ActorPoolStrategy:
    """Dedicated processes for a function or class: `size` of them, or between `min_size` and `max_size`."""

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("size", "min_size", "max_size"):
            check_int(f"ActorPoolStrategy.{name}", getattr(self, name), at_least=1, optional=True)
        if self.size is not None and (self.min_size is not None or self.max_size is not None):
            raise ValueError("ActorPoolStrategy takes either size or min_size and max_size, not both")
        if self.min_size is not None and self.max_size is not None and self.min_size > self.max_size:
            raise ValueError(f"min_size must be at most max_size={self.max_size}, got {self.min_size}")


Compute = ActorPoolStrategy | TaskPoolStrategy
Concurrency = int | tuple[int, int]


def resolve_pool(
    fn: Any,
    compute: Compute | None,
    concurrency: Concurrency | None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
) -> PoolSpec | None:
    """Return the pool for a function or class; None means wherever the rows are."""
    check_number("num_cpus", num_cpus, at_least=0, optional=True)
    check_number("num_gpus", num_gpus, at_least=0, optional=True)
    if compute is not None and concurrency is not None:
        raise ValueError("compute and concurrency cannot be combined: both set the number of processes")
    is_class = inspect.isclass(fn)
    cpus = 1.0 if num_cpus is None else float(num_cpus)
    gpus = float(num_gpus or 0)
    bounds = _strategy_bounds(compute, is_class) if compute is not None else _concurrency_bounds(concurrency, is_class)
    if not is_class and not gpus and not isinstance(compute, ActorPoolStrategy):
        return None
    least, most = bounds
    if most is None:
        room = 1 if gpus else int(DataContext.get_current().num_processes / max(cpus, 1.0))
        most = max(least, room)
    return PoolSpec(least, most, cpus, gpus)


def _strategy_bounds(compute: Compute, is_class: bool) -> tuple[int, int | None]:
    match compute:
        case ActorPoolStrategy(size=int(size)):
            return size, size
        case ActorPoolStrategy(min_size=least, max_size=most):
            return least or 1, most
        case TaskPoolStrategy(size=size) if not is_class:
            return 1, size
        case TaskPoolStrategy():
            raise ValueError(
                "compute=TaskPoolStrategy() is for functions: a class needs a pool of processes\n\n"
                "hint: use compute=ActorPoolStrategy(size=2) or concurrency=2"
            )
    raise TypeError(f"compute must be an ActorPoolStrategy or a TaskPoolStrategy, got {compute!r}")


def _concurrency_bounds(concurrency: Concurrency | None, is_class: bool) -> tuple[int, int | None]:
    match concurrency:
        case None:
            return 1, None
        case int() if not isinstance(concurrency, bool):
            check_int("concurrency", concurrency, at_least=1)
            return (concurrency if is_class else 1), concurrency
        case (int(least), int(most)) if 1 <= least <= most:
            if not is_class:
                raise ValueError(f"concurrency must be one integer for a function, got {concurrency!r}")
            return least, most
    raise bad_value("concurrency", "a positive integer, or two of them: (least, most)", concurrency)
