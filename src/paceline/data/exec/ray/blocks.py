"""The blocks of a pipeline in its order, by reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.stats import Record


class Placed(msgspec.Struct, frozen=True):
    """Some rows of the order that lie on the cluster. `unpacked(ray.get(ref))` is the block of them."""

    unit: int
    """Which of the pipeline's tasks they come of."""
    offset: int
    """How many rows of that task's output come before."""
    num_rows: int
    num_bytes: int
    """What the object takes in the object store."""
    ref: Any
    """A `ray.ObjectRef`. The rows are kept for as long as somebody has it."""


def blocks_of(
    pipeline: Pipeline,
    unit: int = 0,
    offset: int = 0,
    *,
    record: Record | None = None,
    say: Callable[[str], None] | None = None,
) -> Iterator[Placed]:
    """The rows of a pipeline in order, from a row of a task's output on; none of the tasks before is begun.

    In a process that is connected to Ray, driver or actor. It runs ahead of who takes from it within
    `DataContext.budget` bytes. Closing the iterator ends the work. `record` gets the stages' statistics and skipped
    rows as their blocks are taken. `say` gets the lines that a person should see. The user's own exceptions come as
    on one machine, once the rows before them are taken.
    """
    raise NotImplementedError
