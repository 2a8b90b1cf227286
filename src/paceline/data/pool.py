"""Where a user's function runs: next to the readers, or in processes of its own.

A class is instantiated once in each process of its pool and called for every batch. A plain function needs no pool: it
runs where the rows are, which saves a transfer to another process.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from paceline.data.context import DataContext
from paceline.data.transform import PoolSpec


@dataclass(frozen=True)
class TaskPoolStrategy:
    """For functions: they run where the rows are, in at most `size` processes at a time."""

    size: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None:
            _check_positive("TaskPoolStrategy(size=...)", self.size)


@dataclass(frozen=True)
class ActorPoolStrategy:
    """Dedicated processes for a function or class: `size` of them, or between `min_size` and `max_size`."""

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("size", "min_size", "max_size"):
            value = getattr(self, name)
            if value is not None:
                _check_positive(f"ActorPoolStrategy({name}=...)", value)
        if self.size is not None and (self.min_size is not None or self.max_size is not None):
            raise ValueError("ActorPoolStrategy takes either size or min_size and max_size, not both")
        if self.min_size is not None and self.max_size is not None and self.min_size > self.max_size:
            raise ValueError(
                f"ActorPoolStrategy has min_size={self.min_size}, which is more than max_size={self.max_size}"
            )


Compute = ActorPoolStrategy | TaskPoolStrategy
Concurrency = int | tuple[int, int]


def resolve_pool(
    fn: Any,
    *,
    compute: Compute | None,
    concurrency: Concurrency | None,
    num_cpus: float | None,
    num_gpus: float | None,
) -> PoolSpec | None:
    """Return the pool for a function or class; None means wherever the rows are."""
    for name, number in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | float) or number < 0):
            raise ValueError(f"{name} must be a number that is not negative, not {number!r}")
    if compute is not None and concurrency is not None:
        raise ValueError("give either compute or concurrency: both say how many processes there are")
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
                "compute=TaskPoolStrategy() is for functions: a class is made once in each process of a pool\n\n"
                "hint: use compute=ActorPoolStrategy(size=2) or concurrency=2"
            )
    raise TypeError(f"compute must be an ActorPoolStrategy or a TaskPoolStrategy, not {compute!r}")


def _concurrency_bounds(concurrency: Concurrency | None, is_class: bool) -> tuple[int, int | None]:
    match concurrency:
        case None:
            return 1, None
        case int() if not isinstance(concurrency, bool):
            _check_positive("concurrency", concurrency)
            return (concurrency if is_class else 1), concurrency
        case (int(least), int(most)) if 1 <= least <= most:
            if not is_class:
                raise ValueError(
                    f"concurrency={concurrency!r} is for classes, which have a pool: for a function it is one number"
                )
            return least, most
    raise ValueError(f"concurrency must be a number of at least 1, or two such, (least, most); not {concurrency!r}")


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
