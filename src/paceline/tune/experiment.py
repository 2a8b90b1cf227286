"""`Experiment`: what to search, as `tune.run` and `run_experiments` take it; and `Trial`, by Ray's path."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from datetime import timedelta
from typing import Any

from paceline._core.arguments import bad_value
from paceline._core.lazy_imports import explain_module
from paceline.train.checkpoint import Checkpoint
from paceline.tune.config import CheckpointConfig, SyncConfig
from paceline.tune.error import TuneError
from paceline.tune.stopper import Stopper, stopper_of
from paceline.tune.trial import Trial

__all__ = ["Experiment", "Trial", "list_experiments"]


@dataclass(eq=False)
class Experiment:
    """A search for `tune.run` or `run_experiments`: its name, what its trials run, and arguments of `tune.run`.

    Experiment("mine", train, config={"lr": tune.uniform(0, 1)}, num_samples=10, stop={"training_iteration": 5})
    """

    name: str
    run: Any
    _: KW_ONLY
    stop: Any = None
    time_budget_s: float | timedelta | None = None
    config: Mapping[str, Any] | None = None
    resources_per_trial: Any = None
    num_samples: int = 1
    storage_path: str | os.PathLike[str] | None = None
    storage_filesystem: Any = None
    checkpoint_config: CheckpointConfig | Mapping[str, Any] | None = None
    sync_config: SyncConfig | Mapping[str, Any] | None = None
    trial_name_creator: Callable[[Trial], str] | None = None
    trial_dirname_creator: Callable[[Trial], str] | None = None
    log_to_file: bool | str | tuple[str, str] = False
    export_formats: Sequence[str] | None = None
    max_failures: int = 0
    restore: Checkpoint | str | os.PathLike[str] | None = None
    local_dir: str | os.PathLike[str] | None = None

    @classmethod
    def from_json(cls, name: str, spec: Mapping[str, Any]) -> Experiment:
        """Create one from a dict such as `{"run": train, "config": {...}, "num_samples": 10}`."""
        if "run" not in spec:
            raise TuneError(f"the spec of experiment {name!r} has no 'run': a function, a class or a registered name")
        known = [field.name for field in fields(cls) if field.name != "name"]
        if unknown := [key for key in spec if key not in known]:
            raise TuneError(f"unknown key {unknown[0]!r} in the spec of {name!r}; the keys are {', '.join(known)}")
        return cls(name, **spec)

    @property
    def spec(self) -> dict[str, Any]:
        """All but the name, as `from_json` takes it."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "name"}

    public_spec = spec

    @property
    def run_identifier(self) -> str:
        """The name of the trainable."""
        run = getattr(self.run, "trainable", self.run)
        return run if isinstance(run, str) else str(getattr(run, "__name__", type(run).__name__))

    @property
    def stopper(self) -> Stopper:
        return stopper_of(self.stop)


def list_experiments(experiments: Any) -> list[Experiment]:
    """Turn what `run_experiments` takes into a list: an experiment, a list of them, or a dict of specs by name."""
    if isinstance(experiments, Experiment):
        return [experiments]
    if isinstance(experiments, Mapping):
        return [
            spec if isinstance(spec, Experiment) else Experiment.from_json(name, spec)
            for name, spec in experiments.items()
        ]
    expected = "an Experiment, a list of them, or a dict such as {'mine': {'run': train, 'config': ...}}"
    if not isinstance(experiments, Sequence) or not all(isinstance(each, Experiment) for each in experiments):
        raise bad_value("experiments", expected, experiments)
    return list(experiments)


explain_module(__name__)
