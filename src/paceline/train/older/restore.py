"""`TorchTrainer.restore(path)`: a trainer that goes on with a run, by the run's path.

A trainer with the same `RunConfig(storage_path=..., name=...)` does the same; no function is kept with a run, since it
would have to be a pickle.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Self

from paceline._control.recover import history_of
from paceline._storage.home import Home
from paceline.train.config import RunConfig, ScalingConfig, as_config


class Restorable:
    """What a trainer's class is given."""

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """Whether a run lies at this path."""
        run, _ = history_of(_home(path, storage_filesystem).depot_to_read())
        return run.attempt > 0 or bool(run.checkpoints)

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
        """A trainer that goes on with the run at this path, from its newest checkpoint.

        `train_loop_per_worker`, its config and the datasets have to be given again. Without a `scaling_config` it has
        as many workers as the run had.
        """
        home = _home(path, storage_filesystem)
        run, _ = history_of(home.depot_to_read())
        if run.attempt == 0 and not run.checkpoints:
            raise ValueError(f"there is no run at {os.fspath(path)}: its path is RunConfig's storage_path and name")
        if train_loop_per_worker is None:
            raise ValueError(
                f"{cls.__name__}.restore needs train_loop_per_worker: functions are not kept with a run\n\n"
                f"hint: {cls.__name__}.restore({os.fspath(path)!r}, train_loop_per_worker=...)"
            )
        asked: RunConfig = as_config(RunConfig, run_config, "run_config")
        place = {"name": home.name, "storage_path": home.storage_path, "storage_filesystem": storage_filesystem}
        return cls(
            train_loop_per_worker,  # type: ignore[call-arg]
            scaling_config=scaling_config if scaling_config is not None else ScalingConfig(num_workers=run.size),
            run_config=dataclasses.replace(asked, **place),
            **arguments,
        )


def _home(path: str | os.PathLike[str], filesystem: Any) -> Home:
    return Home.of_path(os.fspath(path), filesystem)
