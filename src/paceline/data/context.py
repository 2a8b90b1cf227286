"""What the running of datasets may use, and how: one value for the process, `DataContext.get_current()`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass
class ExecutionResources:
    """What the processes of a dataset may use together; None: what is there."""

    cpu: float | None = None
    gpu: float | None = None
    object_store_memory: float | None = None
    """Bytes in flight between those who make blocks and those who take them. None: a quarter of the free memory."""

    def __post_init__(self) -> None:
        for name in ("cpu", "gpu", "object_store_memory"):
            given = getattr(self, name)
            if given is not None and (isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0):
                raise ValueError(f"{name}={given!r} is not a number of 0 or more, or None for what is there")


@dataclass
class ExecutionOptions:
    """How datasets are run: `DataContext.get_current().execution_options`."""

    resource_limits: ExecutionResources = field(default_factory=ExecutionResources)
    preserve_order: bool = True
    """Always so: the order of rows is part of what a dataset is."""
    verbose_progress: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.resource_limits, ExecutionResources):
            raise ValueError(f"resource_limits={self.resource_limits!r} is not a paceline.data.ExecutionResources")


@dataclass
class DataContext:
    """What holds for all datasets of this process: change the one that `DataContext.get_current()` gives."""

    execution_options: ExecutionOptions = field(default_factory=ExecutionOptions)
    target_max_block_size: int = 128 << 20
    """A block that grows beyond so many bytes is cut."""
    inline_below: int = 4 << 20
    """A dataset that is known to be smaller is run in this process: starting others would take longer."""
    max_unit_failures: int = 3
    """How often a unit is done again after the process it was in has died."""
    spill_path: str | None = None
    """Where rows lie that a shuffle or a sort cannot keep in memory. None: the system's temporary directory."""

    in_data_process: ClassVar[bool] = False
    """Whether this process is one of those that work for a dataset: it starts no others."""
    _current: ClassVar[DataContext | None] = None

    @classmethod
    def get_current(cls) -> DataContext:
        """The one of this process."""
        if cls._current is None:
            cls._current = cls()
        return cls._current

    @property
    def budget(self) -> int:
        """How many bytes may be in flight."""
        limit = self.execution_options.resource_limits.object_store_memory
        return int(limit) if limit is not None else _free_memory() // 4

    @property
    def num_processes(self) -> int:
        """How many read and transform at a time."""
        limit = self.execution_options.resource_limits.cpu
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, int(limit) if limit is not None else cores)


def _free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)
