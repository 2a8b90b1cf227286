"""Where a user's function runs: beside the readers, or in processes of its own.

A class is made once in each process of its pool and then called for every batch. A plain function needs none: it runs
where the rows are, which saves the way to another process.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from paceline.data.context import DataContext
from paceline.data.transform import Pool


@dataclass(frozen=True)
class TaskPoolStrategy:
    """For functions: they run where the rows are. `size` is at most how many processes work at a time."""

    size: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None:
            _at_least_one("TaskPoolStrategy(size=...)", self.size)


@dataclass(frozen=True)
class ActorPoolStrategy:
    """Processes of its own for a function or class: `size` of them, or between `min_size` and `max_size`."""

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("size", "min_size", "max_size"):
            value = getattr(self, name)
            if value is not None:
                _at_least_one(f"ActorPoolStrategy({name}=...)", value)
        if self.size is not None and (self.min_size is not None or self.max_size is not None):
            raise ValueError("ActorPoolStrategy takes either size or min_size and max_size, not both")
        if self.min_size is not None and self.max_size is not None and self.min_size > self.max_size:
            raise ValueError(
                f"ActorPoolStrategy has min_size={self.min_size}, which is more than max_size={self.max_size}"
            )


Compute = ActorPoolStrategy | TaskPoolStrategy
Concurrency = int | tuple[int, int]


def pool_for(
    fn: Any,
    *,
    compute: Compute | None,
    concurrency: Concurrency | None,
    num_cpus: float | None,
    num_gpus: float | None,
) -> Pool | None:
    """The processes for a function or a class; None: wherever the rows are."""
    for name, number in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | float) or number < 0):
            raise ValueError(f"{name} must be a number that is not negative, not {number!r}")
    if compute is not None and concurrency is not None:
        raise ValueError("give either compute or concurrency: both say how many processes there are")
    is_class = inspect.isclass(fn)
    cpus = 1.0 if num_cpus is None else float(num_cpus)
    gpus = float(num_gpus or 0)
    bounds = _bounds(compute, is_class) if compute is not None else _counted(concurrency, is_class)
    if not is_class and not gpus and not isinstance(compute, ActorPoolStrategy):
        return None
    least, most = bounds
    if most is None:
        room = 1 if gpus else int(DataContext.get_current().num_processes / max(cpus, 1.0))
        most = max(least, room)
    return Pool(least, most, cpus, gpus)


def _bounds(compute: Compute, is_class: bool) -> tuple[int, int | None]:
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


def _counted(concurrency: Concurrency | None, is_class: bool) -> tuple[int, int | None]:
    match concurrency:
        case None:
            return 1, None
        case int() if not isinstance(concurrency, bool):
            _at_least_one("concurrency", concurrency)
            return (concurrency if is_class else 1), concurrency
        case (int(least), int(most)) if 1 <= least <= most:
            if not is_class:
                raise ValueError(
                    f"concurrency={concurrency!r} is for classes, which have a pool: for a function it is one number"
                )
            return least, most
    raise ValueError(f"concurrency must be a number of at least 1, or two such, (least, most); not {concurrency!r}")


def _at_least_one(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
