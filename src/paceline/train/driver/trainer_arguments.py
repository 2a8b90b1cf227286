"""The arguments of a trainer as one frozen value, the run spec that is built from it, and the run itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from paceline._core.arguments import check_instance
from paceline._worker.main import Job
from paceline.train.backend import BackendConfig
from paceline.train.callbacks import LoggerCallback, TracingCallback, TrainingCallback, TrainRunContext, UserCallback
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig, check_not_searched, coerce_config
from paceline.train.display.terminal import make_terminal
from paceline.train.driver import preflight
from paceline.train.driver.datasets import DataConfig, DatasetSpec, build_dataset_spec
from paceline.train.driver.execution_target import ExecutionTarget, LocalTarget, choose_target
from paceline.train.driver.job import pickle_filesystem, pickle_job, resolve_loop_config
from paceline.train.driver.run_directory import choose_name
from paceline.train.driver.run_session import execute_run
from paceline.train.driver.run_spec import RunEnvironment, RunHooks, RunSpec, ValidationSpec
from paceline.train.driver.validation import ValidationConfig
from paceline.train.result import Result


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainerArguments:
    """What a trainer was constructed with, checked. `parse` and `replace` make one; a trainer holds it."""

    train_loop_per_worker: Callable[..., Any]
    train_loop_config: Mapping[str, Any] | None
    backend_config: BackendConfig
    scaling_config: ScalingConfig
    run_config: RunConfig
    resume_from_checkpoint: Checkpoint | None
    validation_config: ValidationConfig | None
    datasets: Mapping[str, Any] | None
    dataset_config: DataConfig
    metadata: Mapping[str, Any] | None = None
    """JSON values for `TrainContext.get_metadata()` and the metadata of every checkpoint."""
    environment: RunEnvironment = field(default_factory=RunEnvironment)
    loop_config: Any
    """What the function is called with; None: call it without arguments."""
    dataset_spec: DatasetSpec | None

    @classmethod
    def parse(cls, **values: Any) -> Self:
        """Check what a user passed; for a configuration, that may be None or a dict of its fields."""
        for name, kind in (("scaling_config", ScalingConfig), ("run_config", RunConfig)):
            values[name] = coerce_config(kind, values[name], name)
        if values["validation_config"] is not None:
            values["validation_config"] = coerce_config(
                ValidationConfig, values["validation_config"], "validation_config"
            )
        values["dataset_config"] = coerce_config(DataConfig, values["dataset_config"], "dataset_config")
        if "dataset_spec" not in values:
            values["dataset_spec"] = build_dataset_spec(values["datasets"], values["dataset_config"])
        backend, scaling = values["backend_config"], values["scaling_config"]
        check_not_searched(scaling)
        check_instance("backend_config", backend, BackendConfig, "a paceline.train.BackendConfig")
        initial, expected = values["resume_from_checkpoint"], "a paceline.train.Checkpoint"
        check_instance("resume_from_checkpoint", initial, Checkpoint, expected, optional=True)
        values["loop_config"] = resolve_loop_config(values["train_loop_per_worker"], values["train_loop_config"])
        backend.check(scaling.max_workers, scaling.use_gpu)
        _encode_metadata(values.get("metadata"))  # Raises for an invalid value.
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, checked anew. A function that makes a dataset is not called again."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if changes.keys() & {"datasets", "dataset_config"}:
            del values["dataset_spec"]
        return self.parse(**{**values, **changes})

    def make_run_context(self, config: Mapping[str, Any] | None = None) -> TrainRunContext:
        """Return the run as callbacks see it; `config`: instead of `train_loop_config`."""
        config = config if config is not None else self.train_loop_config
        configs = self.scaling_config, self.backend_config, self.dataset_config
        return TrainRunContext(self.run_config.location.name, self.run_config, config, *configs)


def build_run_spec(arguments: TrainerArguments, target: ExecutionTarget, parts: Job | None = None) -> RunSpec:
    """Check that the run can start, and return its spec; by default for the trainer's own function."""
    run_config, scaling = arguments.run_config, arguments.scaling_config
    _check_run_callbacks(run_config)
    preflight.check_limits(scaling.sizes[-1])
    preflight.check_initial_checkpoint(arguments.resume_from_checkpoint, run_config.location.layout)
    datasets = arguments.dataset_spec
    if datasets is not None and datasets.divider is not None and not isinstance(target, LocalTarget):
        raise ValueError(
            f"{type(datasets.divider).__name__}.configure() needs workers on this machine, but this run is on a cluster"
            "\n\nhint: use datasets_to_split and exact of paceline.train.DataConfig, or RunConfig(engine='local')"
        )
    if parts is None:
        parts = (arguments.train_loop_per_worker, arguments.loop_config, arguments.backend_config)
    return RunSpec(
        job_parts=parts,
        pickled_job=pickle_job(*parts),
        run_config=run_config,
        run_context=arguments.make_run_context(),
        scaling_config=scaling,
        target=target,
        is_inline=scaling.num_workers == 0,
        initial_checkpoint=arguments.resume_from_checkpoint,
        pickled_filesystem=pickle_filesystem(run_config.storage_filesystem),
        validation=_build_validation_spec(arguments.validation_config, target),
        datasets=datasets,
        purpose=_find_purpose(run_config),
        user_metadata=_encode_metadata(arguments.metadata),
    )


def _encode_metadata(metadata: Any) -> str:
    check_instance("metadata", metadata, Mapping, "a dict of JSON values", optional=True)
    try:
        return json.dumps(dict(metadata)) if metadata else ""
    except (TypeError, ValueError) as problem:
        raise ValueError(f"metadata must be a dict of JSON values: {problem}") from None


def _check_run_callbacks(config: RunConfig) -> None:
    for callback in config.callbacks:
        kind = type(callback)
        if getattr(kind, "_is_for_searches", False) and not (
            isinstance(callback, TrainingCallback | LoggerCallback | TracingCallback)
            or kind.after_report is not UserCallback.after_report  # type: ignore[union-attr]
            or kind.after_exception is not UserCallback.after_exception  # type: ignore[union-attr]
        ):
            raise ValueError(
                f"{kind.__name__} in callbacks is a callback of a search: a run never calls its hooks\n\n"
                "hint: pass it in the RunConfig of a Tuner, or subclass paceline.train.UserCallback"
            )


def _find_purpose(config: RunConfig) -> str:
    callbacks = (callback for callback in config.callbacks if isinstance(callback, UserCallback))
    return next((callback._run_purpose for callback in callbacks if callback._run_purpose), "")


def _build_validation_spec(config: ValidationConfig | None, target: ExecutionTarget) -> ValidationSpec | None:
    if config is None:
        return None
    share = target.compute_auxiliary_share(num_cpus=config.num_cpus, num_gpus=config.num_gpus)
    return ValidationSpec(config, config.pickle_function(), share)


def resolve_fork(arguments: TrainerArguments) -> TrainerArguments:
    """Return arguments whose initial checkpoint is that of `RunConfig(fork_from=...)`, if there is one."""
    config = arguments.run_config
    source = config.fork_from
    if source is None:
        return arguments
    if arguments.resume_from_checkpoint is not None:
        raise ValueError("RunConfig(fork_from=...) and resume_from_checkpoint both say where to start: use one of them")
    checkpoint = source
    if not isinstance(source, Checkpoint):
        result = source if isinstance(source, Result) else Result.from_path(source, config.storage_filesystem)
        checkpoint = result.checkpoint
        if checkpoint is None:
            raise ValueError(f"RunConfig(fork_from=...): the run {result.path} has no checkpoint to start from")
    # The path alone is stored with the run, and sent to a cluster.
    run_config = replace(config, fork_from=checkpoint.path)
    return arguments.replace(resume_from_checkpoint=checkpoint, run_config=run_config)


def _check_for_train(arguments: TrainerArguments) -> None:
    """Raise for options of a run that only a search has."""
    config = arguments.run_config
    if config.progress_reporter is not None:
        raise ValueError(
            "RunConfig(progress_reporter=...) is for a search: a single run has no table of trials\n\n"
            "hint: verbose sets how much is printed, and callbacks receive every report"
        )
    checkpoints = config.checkpoint_config
    if getattr(arguments.train_loop_per_worker, "saves_by_itself", False):
        return
    for name in ("checkpoint_frequency", "checkpoint_at_end"):
        if value := getattr(checkpoints, name):
            raise ValueError(
                f"CheckpointConfig({name}={value!r}) has no effect here: the train function decides when it reports a "
                "checkpoint\n\nhint: call train.report(metrics, checkpoint=...) when there is one to save"
            )


def run_trainer(arguments: TrainerArguments, hooks: RunHooks | None = None) -> Result:
    """Run what a trainer was constructed for, here or detached on the cluster."""
    run_config = choose_name(arguments.run_config)
    if run_config is not arguments.run_config:
        arguments = arguments.replace(run_config=run_config)
    arguments = resolve_fork(arguments)
    run_config = arguments.run_config
    target = choose_target(arguments.scaling_config, run_config)
    target.check()
    _check_for_train(arguments)
    spec = build_run_spec(arguments, target)
    if run_config.stop is not None:
        spec = replace(spec, stop=run_config.stop, waits_in_reports=True)
    if run_config.detached:
        from paceline.train.driver.detached import fit_detached

        return fit_detached(spec)
    terminal = make_terminal(
        run_config.location.layout,
        arguments.train_loop_config,
        inline=spec.is_inline,
        verbosity=run_config.verbosity,
    )
    return execute_run(spec, terminal, arguments.environment, hooks)
