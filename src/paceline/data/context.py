"""Execution settings for datasets: one value per process, `DataContext.get_current()`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar

from paceline._core import system
from paceline._core.arguments import bad_value, check_instance, is_number


@dataclass
class ExecutionResources:
    """Limits on what the processes of a dataset may use together; None means everything available."""

    cpu: float | None = None
    gpu: float | None = None
    object_store_memory: float | None = None
    """Bytes in flight between producers and consumers of blocks. None: a quarter of the free memory."""

    def __post_init__(self) -> None:
        for name in ("cpu", "gpu", "object_store_memory"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value >= 0):
                raise bad_value(name, "a non-negative number, or None for all that is available", value)


@dataclass
class ExecutionOptions:
    """Options for running datasets: `DataContext.get_current().execution_options`."""

    resource_limits: ExecutionResources = field(default_factory=ExecutionResources)
    preserve_order: bool = True
    """Always True: the order of rows is part of a dataset."""
    verbose_progress: bool = False

    def __post_init__(self) -> None:
        expected = "a paceline.data.ExecutionResources"
        check_instance("resource_limits", self.resource_limits, ExecutionResources, expected)


@dataclass
class DataContext:
    """Settings for all datasets of this process. Modify the object that `DataContext.get_current()` returns."""

    execution_options: ExecutionOptions = field(default_factory=ExecutionOptions)
    target_max_block_size: int = 128 << 20
    """Maximum size of a block in bytes; larger blocks are split."""
    inline_below: int = 4 << 20
    """A dataset known to be smaller, in bytes, runs in the calling process: starting others would take longer."""
    max_unit_failures: int = 3
    """How often a unit is retried after the process that ran it died."""
    spill_path: str | None = None
    """Directory for rows that a shuffle or a sort cannot keep in memory. None: the system's temporary directory."""

    in_data_process: ClassVar[bool] = False
    """Whether this process is a data process. Data processes start no others."""
    _current: ClassVar[DataContext | None] = None

    @classmethod
    def get_current(cls) -> DataContext:
        """Return the context of this process."""
        if cls._current is None:
            cls._current = cls()
        return cls._current

    @property
    def budget(self) -> int:
        """Return how many bytes may be in flight."""
        limit = self.execution_options.resource_limits.object_store_memory
        return int(limit if limit is not None else system.usable_memory().free_bytes // 4)

    @property
    def num_processes(self) -> int:
        """Return how many processes read and transform at the same time."""
        limit = self.execution_options.resource_limits.cpu
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, int(limit) if limit is not None else cores)
