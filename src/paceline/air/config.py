"""The configuration classes with the order that Ray 2.0 gave their arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from paceline._core.frames import warn_caller
from paceline._core.lazy_imports import explain_module
from paceline.train import config as modern
from paceline.train.config import CheckpointConfig, FailureConfig

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"]


class ScalingConfig(modern.ScalingConfig):
    """`paceline.train.ScalingConfig`; its first argument is `trainer_resources`, which has no effect."""

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
        if _max_cpu_fraction_per_node is not None:
            name = f"_max_cpu_fraction_per_node={_max_cpu_fraction_per_node!r}"
            warn_caller(f"{name} has no effect here: no CPUs are reserved for datasets")
        super().__init__(
            1 if num_workers is None else num_workers,
            use_gpu,
            resources_per_worker,
            placement_strategy,
            trainer_resources=trainer_resources,
            **more_options,
        )


class RunConfig(modern.RunConfig):
    """`paceline.train.RunConfig`, with `local_dir` or the `upload_dir` of `sync_config` for `storage_path`."""

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
        super().__init__(
            name=name,
            storage_path=places[0] if places else None,
            failure_config=failure_config,
            checkpoint_config=checkpoint_config,
            callbacks=callbacks or (),
            stop=stop,
            progress_reporter=progress_reporter,
            verbose=verbose,
            log_to_file=log_to_file,
            sync_config=None if upload_dir is not None else sync_config,
            **more_options,
        )

    @property
    def local_dir(self) -> str | os.PathLike[str] | None:
        return self.storage_path


explain_module(__name__)
