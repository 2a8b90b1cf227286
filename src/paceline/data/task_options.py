"""Arguments that place the tasks of Ray Data, such as `num_cpus` of a reader.

A dataset here has processes of its own, so these have no effect, which a warning says once for each of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypedDict

from paceline._core.arguments import check_int

_warned: set[tuple[str, str]] = set()


class PlacementOptions(TypedDict, total=False):
    """Where and how often Ray runs a task."""

    label_selector: Annotated[Any, None]
    fallback_strategy: Annotated[Any, None]
    max_calls: Annotated[Any, None]
    resources: Annotated[Any, None]
    accelerator_type: Annotated[Any, None]
    runtime_env: Annotated[Any, None]


class TaskOptions(PlacementOptions, total=False):
    """What Ray gives to a task, and where and how often it runs it."""

    num_cpus: Annotated[Any, None]
    num_gpus: Annotated[Any, None]
    memory: Annotated[Any, None]


class ColumnOptions(TaskOptions, total=False):
    """The same, for methods that select or compute columns."""

    compute: Annotated[Any, None]
    concurrency: Annotated[Any, None]


class UnitOptions(TypedDict, total=False):
    """How many units the rows are read in. `concurrency` has no effect: `DataContext` sets the number of processes.

    `parallelism` is an older name of `override_num_blocks`.
    """

    parallelism: Annotated[int, -1]
    concurrency: Annotated[int | None, None]
    override_num_blocks: Annotated[int | None, None]


class ReadOptions(TaskOptions, UnitOptions, total=False):
    """The arguments of all readers."""

    ray_remote_args: Annotated[Any, None]


def warn_unused(function: str, options: Mapping[str, Any], names: Iterable[str] | None = None) -> None:
    """Warn once of each argument that was given and has no effect."""
    for name in TaskOptions.__annotations__ if names is None else names:
        if options.get(name) is not None and (function, name) not in _warned:
            _warned.add((function, name))
            warnings.warn(
                f"{function}: {name} has no effect here: it is about Ray's tasks, and a dataset has its own processes",
                stacklevel=4,
            )


def parse_num_units(options: UnitOptions) -> int | None:
    """Check the arguments; return the number of units that was asked for, or None."""
    check_int("concurrency", options.get("concurrency"), at_least=1, optional=True)
    number: int | None = check_int("override_num_blocks", options.get("override_num_blocks"), at_least=1, optional=True)
    older: int = check_int("parallelism", options.get("parallelism", -1), at_least=-1)
    if number is not None and older > 0:
        raise ValueError("parallelism and override_num_blocks cannot be combined: both set the number of units")
    return older if older > 0 else number
