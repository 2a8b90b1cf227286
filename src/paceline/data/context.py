"""Execution settings for datasets: one value per process, `DataContext.get_current()`."""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from paceline._core import system
from paceline._core.arguments import bad_value, check_instance, is_number

_RAY_SETTINGS = """
    actor_init_max_retries actor_init_retry_on_errors actor_locality_enabled actor_prefetcher_enabled
    actor_task_retry_on_errors arrow_fixed_shape_tensor_format autoscaling_config batch_to_block_arrow_format
    block_splitting_enabled checkpoint_config custom_execution_callback_classes dataset_logger_id
    decoding_size_estimation default_hash_shuffle_parallelism default_map_logical_memory_enabled delta_config
    downstream_capacity_backpressure_ratio eager_free enable_arrow_backed_pandas_conversion enable_auto_log_stats
    enable_dynamic_output_queue_size_backpressure enable_fallback_to_arrow_object_ext_type
    enable_get_object_locations_for_metrics enable_operator_progress_bars enable_pandas_block enable_per_node_metrics
    enable_progress_bar_name_truncation enable_progress_bars enable_rich_progress_bars enable_tensor_extension_casting
    enforce_schemas exclude_resources execution_callback_classes execution_no_progress_timeout_s
    gpu_shuffle_num_actors gpu_shuffle_rmm_pool_size gpu_shuffle_setup_timeout_s gpu_shuffle_spill_memory_limit
    hash_aggregate_operator_actor_num_cpus_override hash_shuffle_aggregator_health_warning_interval_s
    hash_shuffle_compression hash_shuffle_operator_actor_num_cpus_override hash_shuffle_reduce_batch_size
    hash_shuffle_reduce_get_timeout_s iceberg_config isolate_read_workers issue_detectors_config
    join_operator_actor_num_cpus_override label_selector lance_config large_args_threshold locality_with_output
    log_internal_stack_trace max_consecutive_actor_init_deaths max_errored_blocks max_hash_shuffle_aggregators
    max_hash_shuffle_finalization_batch_size max_map_retries max_tasks_in_flight_per_actor memory
    memory_usage_poll_interval_s min_hash_shuffle_aggregator_wait_time_in_s min_parallelism
    op_resource_reservation_enabled op_resource_reservation_ratio optimizer_enabled
    override_object_store_memory_limit_fraction pandas_block_ignore_metadata parquet_chunker_target_chunk_size
    pipeline_push_based_shuffle_reduce_tasks print_on_execution_start raise_original_map_exception
    read_op_min_num_blocks retried_io_errors retried_map_errors s3_try_create_dir scheduling_strategy
    scheduling_strategy_large_args shuffle_input_batch_bytes shuffle_strategy streaming_read_buffer_size
    target_min_block_size target_shuffle_max_block_size trace_allocations use_arrow_tensor_v2 use_datasource_v2
    use_legacy_dataset_ids use_polars use_polars_sort use_push_based_shuffle use_ray_tqdm use_streaming_executor
    verbose_progress verbose_stats_logs wait_for_min_actors_s warn_on_driver_memory_usage_bytes
    write_file_retry_on_errors
"""
"""Settings of Ray's `DataContext`, `ExecutionOptions` and `ExecutionResources` that mean nothing here."""
_RAY_NAMES = frozenset(_RAY_SETTINGS.split())
_warned: set[str] = set()


class _DatasetSettings:
    """Refuses to set what does not exist: a misspelt setting would be ignored."""

    def __setattr__(self, name: str, value: Any) -> None:
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
        owner = type(self).__name__
        is_default = hasattr(type(self), name) and value == getattr(type(self), name)
        if name in _RAY_NAMES and not is_default:
            if f"{owner}.{name}" not in _warned:
                _warned.add(f"{owner}.{name}")
                warnings.warn(f"{owner}.{name} has no effect here: it is a setting of Ray Data", stacklevel=2)
        elif name not in names and not hasattr(type(self), name):
            import difflib

            similar = difflib.get_close_matches(name, [*names, *_RAY_NAMES], n=1)
            hint = f"\n\nhint: did you mean {similar[0]!r}?" if similar else ""
            raise AttributeError(f"{owner} has no setting {name!r}; the settings are {', '.join(names)}{hint}")
        super().__setattr__(name, value)


@dataclass
class ExecutionResources(_DatasetSettings):
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
class ExecutionOptions(_DatasetSettings):
    """Options for running datasets: `DataContext.get_current().execution_options`."""

    resource_limits: ExecutionResources = field(default_factory=ExecutionResources)
    preserve_order: bool = True
    """Always True: the order of rows is part of a dataset."""
    verbose_progress: bool = False
    """Has no effect."""

    def __post_init__(self) -> None:
        expected = "a paceline.data.ExecutionResources"
        check_instance("resource_limits", self.resource_limits, ExecutionResources, expected)


@dataclass
class DataContext(_DatasetSettings):
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

    def copy(self) -> DataContext:
        """Return a copy that can be changed on its own."""
        return copy.deepcopy(self)

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
