"""The configuration classes with their older arguments.

Arguments that have no effect here raise a warning that says what to use instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from paceline._core.frames import warn_caller
from paceline._core.lazy_imports import explain_module
from paceline.train import config as modern

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"]


class ScalingConfig(modern.ScalingConfig):
    """`paceline.train.ScalingConfig`, with `trainer_resources`, which has no effect: there is no separate trainer
    process."""

    def __init__(
        self,
        trainer_resources: Mapping[str, float] | None = None,
        num_workers: int | tuple[int, int] | None = None,
        use_gpu: bool = False,
        resources_per_worker: Mapping[str, float] | None = None,
        placement_strategy: str = "PACK",
        _max_cpu_fraction_per_node: float | None = None,
        **more_options: Any,
    ) -> None:
        resources = dict(trainer_resources) if trainer_resources else None
        _warn_no_effect(
            ("trainer_resources", resources, "the trainer runs in this script"),
            ("_max_cpu_fraction_per_node", _max_cpu_fraction_per_node, "no CPUs are reserved for datasets"),
        )
        size = 1 if num_workers is None else num_workers
        super().__init__(size, use_gpu, resources_per_worker, placement_strategy, **more_options)


class CheckpointConfig(modern.CheckpointConfig):
    """`paceline.train.CheckpointConfig`. The train function decides how often to report a checkpoint."""

    def __init__(
        self,
        num_to_keep: int | None = None,
        checkpoint_score_attribute: str | None = None,
        checkpoint_score_order: str | None = "max",
        checkpoint_frequency: int | None = 0,
        checkpoint_at_end: bool | None = None,
        **more_options: Any,
    ) -> None:
        _warn_no_effect(
            ("checkpoint_frequency", checkpoint_frequency or None, "the function decides when to report one"),
            ("checkpoint_at_end", checkpoint_at_end, "report a checkpoint before the train function returns"),
        )
        super().__init__(num_to_keep, checkpoint_score_attribute, checkpoint_score_order or "max", **more_options)


class FailureConfig(modern.FailureConfig):
    """`paceline.train.FailureConfig`. `fail_fast` means `max_failures=0`."""

    def __init__(self, max_failures: int = 0, fail_fast: bool | str = False, **more_options: Any) -> None:
        if fail_fast and max_failures:
            raise ValueError(f"fail_fast={fail_fast!r} contradicts max_failures={max_failures}")
        super().__init__(max_failures=max_failures, **more_options)


class RunConfig(modern.RunConfig):
    """`paceline.train.RunConfig`, with `local_dir` for `storage_path`, and with older terminal and tuner options."""

    def __init__(
        self,
        name: str | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        callbacks: Any = None,
        stop: Any = None,
        failure_config: Any = None,
        sync_config: Any = None,
        checkpoint_config: Any = None,
        progress_reporter: Any = None,
        verbose: Any = None,
        log_to_file: Any = False,
        *,
        storage_path: str | os.PathLike[str] | None = None,
        **more_options: Any,
    ) -> None:
        upload_dir = getattr(sync_config, "upload_dir", None)
        places = [path for path in (storage_path, upload_dir, local_dir) if path is not None]
        if storage_path is not None and local_dir is not None:
            raise ValueError(f"use storage_path={storage_path!r} or local_dir={local_dir!r}, not both")
        _warn_no_effect(
            ("stop", stop, "return from the train function when it is done"),
            ("progress_reporter", progress_reporter, "use callbacks, which receive every report"),
            ("verbose", verbose, "set PACELINE_VERBOSITY to 0, 1 or 2"),
            ("log_to_file", log_to_file, "all output of every worker is in result.log_dir"),
            ("sync_config", None if upload_dir else sync_config, "files are written to storage_path directly"),
        )
        super().__init__(
            name=name,
            storage_path=places[0] if places else None,
            failure_config=failure_config if failure_config is not None else FailureConfig(),
            checkpoint_config=checkpoint_config if checkpoint_config is not None else CheckpointConfig(),
            callbacks=callbacks or (),
            **more_options,
        )


def _warn_no_effect(*arguments: tuple[str, Any, str]) -> None:
    """Warn about arguments that are set: each with its name, its value and what to do instead."""
    for name, value, instead in arguments:
        if value is not None and value is not False:
            warn_caller(f"{name}={value!r} has no effect here: {instead}")


explain_module(__name__)
