"""`TorchTrainer.restore(path)`: a trainer that resumes a run, given the run's path.

A trainer with the same `RunConfig(storage_path=..., name=...)` does the same. A run does not store the function, since
that would have to be a pickle.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Self

from paceline._control.recovery import load_history
from paceline._control.run import Run
from paceline._storage.run_location import RunLocation
from paceline.train.config import RunConfig, ScalingConfig, coerce_config


class RestoreMixin:
    """The class methods `restore` and `can_restore` of trainers."""

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """Whether there is a run at this path."""
        return _load_run(RunLocation.from_path(os.fspath(path), storage_filesystem)) is not None

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        train_loop_per_worker: Any = None,
        *,
        storage_filesystem: Any = None,
        scaling_config: Any = None,
        run_config: Any = None,
        **arguments: Any,
    ) -> Self:
        """Return a trainer that resumes the run at this path from its newest checkpoint.

        Pass `train_loop_per_worker`, its config and the datasets again. Without a `scaling_config`, it uses as many
        workers as the run had.
        """
        location = RunLocation.from_path(os.fspath(path), storage_filesystem)
        run = _load_run(location)
        if run is None:
            raise ValueError(f"no run at {os.fspath(path)}: pass the path RunConfig(storage_path)/name")
        if train_loop_per_worker is None:
            raise ValueError(
                f"{cls.__name__}.restore needs train_loop_per_worker: a run does not store it\n\n"
                f"hint: {cls.__name__}.restore({os.fspath(path)!r}, train_loop_per_worker=...)"
            )
        config: RunConfig = coerce_config(RunConfig, run_config, "run_config")
        config = dataclasses.replace(
            config, name=location.name, storage_path=location.storage_path, storage_filesystem=storage_filesystem
        )
        return cls(
            train_loop_per_worker,  # type: ignore[call-arg]
            scaling_config=scaling_config if scaling_config is not None else ScalingConfig(num_workers=run.size),
            run_config=config,
            **arguments,
        )


def _load_run(location: RunLocation) -> Run | None:
    run, _ = load_history(location.open_run_store_for_reading())
    return run if run.attempt or run.checkpoints else None
