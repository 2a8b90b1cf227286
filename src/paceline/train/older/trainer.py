"""`Trainer` of Ray 1.x, which runs functions on persistent workers."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from paceline._core.arguments import bad_value
from paceline.train.backend import BackendConfig
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import FailureConfig, RunConfig, ScalingConfig, coerce_config
from paceline.train.driver.datasets import DataConfig
from paceline.train.driver.trainer_arguments import TrainerArguments
from paceline.train.driver.validation import ValidationConfig
from paceline.train.result import Result
from paceline.train.trainer import DataParallelTrainer

MAX_RETRIES = 3


class Trainer(DataParallelTrainer):
    """Runs functions on persistent workers.

        trainer = Trainer(backend="torch", num_workers=2)
        trainer.start()
        results = trainer.run(train_func, config={"lr": 0.1})
        trainer.shutdown()

    `backend` is the name of a framework to set up, a `BackendConfig`, or None. `max_retries` is how often workers are
    restarted from the last checkpoint after a failure; -1 means no limit. `logdir` is the trainer's directory.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any] | BackendConfig | str | None = None,
        backend: str | BackendConfig | None = None,
        num_workers: int | tuple[int, int] | None = None,
        use_gpu: bool | None = None,
        resources_per_worker: Mapping[str, float] | None = None,
        logdir: str | os.PathLike[str] | None = None,
        max_retries: int | None = None,
        *,
        scaling_config: ScalingConfig | Mapping[str, Any] | None = None,
        run_config: RunConfig | Mapping[str, Any] | None = None,
        train_loop_config: Mapping[str, Any] | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        validation_config: ValidationConfig | Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        first = train_loop_per_worker
        if backend is None and (
            isinstance(first, BackendConfig) or (isinstance(first, str) and first in (*_BACKENDS, "horovod"))
        ):
            # `Trainer("torch", num_workers=2)`: the backend used to be the first argument.
            train_loop_per_worker, backend = None, first
        named = train_loop_per_worker if isinstance(train_loop_per_worker, str) else None
        function = train_loop_per_worker if callable(train_loop_per_worker) else _missing_function
        if train_loop_per_worker is not None and named is None and function is _missing_function:
            raise bad_value("train_loop_per_worker", "a function", train_loop_per_worker)
        super().__init__(
            function,
            train_loop_config=train_loop_config,
            backend_config=find_backend(backend),
            scaling_config=_build_scaling_config(scaling_config, num_workers, use_gpu, resources_per_worker),
            run_config=_build_run_config(run_config, logdir, max_retries),
            resume_from_checkpoint=resume_from_checkpoint,
            validation_config=validation_config,
            datasets=datasets,
            dataset_config=dataset_config,
            metadata=metadata,
        )
        self._function_name = named

    def replace_arguments(self, **changes: Any) -> Self:
        if "backend" in changes:
            changes["backend_config"] = find_backend(changes.pop("backend"))
        return super().replace_arguments(**changes)

    @property
    def train_loop_per_worker(self) -> Any:
        """The constructor's function, or only its name, or None."""
        function = self.trainer_arguments.train_loop_per_worker
        return self._function_name if function is _missing_function else function

    @staticmethod
    def load_checkpoint_from_path(path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the state of a checkpoint that `train.save_checkpoint` saved."""
        return Checkpoint(path).to_dict()

    def to_tune_trainable(self, train_func: Callable[..., Any], dataset: Any = None) -> DataParallelTrainer:
        """Return what `Tuner` and `tune.run` take: each trial trains the function, with its configuration as config."""
        arguments = self.trainer_arguments
        datasets = arguments.datasets if dataset is None else dataset
        return _FlatConfigTrainer(
            train_loop_per_worker=train_func,
            train_loop_config=arguments.train_loop_config,
            backend_config=arguments.backend_config,
            scaling_config=arguments.scaling_config,
            run_config=arguments.run_config,
            datasets=datasets if datasets is None or isinstance(datasets, Mapping) else {"train": datasets},
            dataset_config=arguments.dataset_config,
        )

    def fit(self) -> Result:
        """Run the constructor's function once, as a trainer without persistent workers does."""
        if not callable(self.train_loop_per_worker):
            raise ValueError("fit() needs Trainer(train_loop_per_worker=...); only run() takes a function itself")
        return super().fit()


class _FlatConfigTrainer(DataParallelTrainer):
    """A trainer whose search space is the config of its function itself, as in Ray 1.x."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)

    def replace_arguments(self, **changes: Any) -> Self:
        names = {field.name for field in dataclasses.fields(TrainerArguments)}
        config = {name: changes.pop(name) for name in [*changes] if name not in names}
        return super().replace_arguments(train_loop_config={**(self.train_loop_config or {}), **config}, **changes)


_BACKENDS = {
    "torch": ("paceline.train.torch", "TorchConfig"),
    "tensorflow": ("paceline.train.tensorflow", "TensorflowConfig"),
    "jax": ("paceline.train.jax", "JaxConfig"),
    "xgboost": ("paceline.train.xgboost", "XGBoostConfig"),
    "lightgbm": ("paceline.train.lightgbm", "LightGBMConfig"),
}


def find_backend(backend: str | BackendConfig | None) -> BackendConfig:
    """Return the backend for a name; a `BackendConfig` is returned as it is, and None sets nothing up."""
    if backend is None:
        return BackendConfig()
    if isinstance(backend, BackendConfig):
        return backend
    if not isinstance(backend, str) or backend not in _BACKENDS:
        names = ", ".join(map(repr, _BACKENDS))
        raise ValueError(
            f"backend must be {names}, a paceline.train.BackendConfig or None, got {backend!r}\n\n"
            "hint: subclass BackendConfig to set up another framework"
        )
    module, name = _BACKENDS[backend]
    config: BackendConfig = getattr(importlib.import_module(module), name)()
    return config


def _missing_function(config: Any = None) -> None:
    raise AssertionError("placeholder for a function passed to run()")


def _build_scaling_config(
    config: Any, num_workers: Any, use_gpu: bool | None, resources: Mapping[str, float] | None
) -> ScalingConfig:
    arguments = {"num_workers": num_workers, "use_gpu": use_gpu, "resources_per_worker": resources}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if config is not None and arguments:
        raise ValueError(f"use scaling_config or {', '.join(arguments)}, not both")
    found: ScalingConfig = coerce_config(ScalingConfig, config if config is not None else arguments, "scaling_config")
    return found


def _build_run_config(config: Any, logdir: Any, max_retries: int | None) -> RunConfig:
    built: RunConfig = coerce_config(RunConfig, config, "run_config")
    if logdir is not None:
        if config is not None and (built.storage_path, built.name) != (RunConfig(name=built.name).storage_path, None):
            raise ValueError("use run_config or logdir, not both: each sets the trainer's directory")
        path = Path(logdir).expanduser().absolute()
        built = dataclasses.replace(built, storage_path=str(path.parent), name=path.name)
    if max_retries is None and config is None:
        max_retries = MAX_RETRIES
    if max_retries is not None:
        limits: FailureConfig = dataclasses.replace(built.failure_config, max_failures=max_retries)
        built = dataclasses.replace(built, failure_config=limits)
    return built
