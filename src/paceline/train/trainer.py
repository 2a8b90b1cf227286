"""`DataParallelTrainer`: keeps the arguments, builds a run spec from them, has it driven, returns a `Result`."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypedDict

from paceline._core.arguments import check_instance
from paceline._core.errors import PacelineError
from paceline._worker.main import Job
from paceline.train.backend import BackendConfig
from paceline.train.callbacks import UserCallback
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig, coerce_config
from paceline.train.display.terminal import make_terminal
from paceline.train.driver import preflight
from paceline.train.driver.datasets import DataConfig, build_dataset_spec
from paceline.train.driver.execution_target import ExecutionTarget, choose_target
from paceline.train.driver.job import pickle_filesystem, pickle_job, resolve_loop_config
from paceline.train.driver.run_session import execute_run
from paceline.train.driver.run_spec import RunEnvironment, RunHooks, RunSpec, ValidationSpec
from paceline.train.driver.validation import ValidationConfig
from paceline.train.older.persistent_workers_mixin import PersistentWorkersMixin
from paceline.train.older.restore import RestoreMixin
from paceline.train.result import Result


class TrainerArguments(TypedDict, total=False):
    """The arguments that the trainers of all frameworks share."""

    train_loop_config: Mapping[str, Any] | None
    scaling_config: ScalingConfig | Mapping[str, Any] | None
    run_config: RunConfig | Mapping[str, Any] | None
    resume_from_checkpoint: Checkpoint | None
    validation_config: ValidationConfig | Mapping[str, Any] | None
    datasets: Mapping[str, Any] | None
    dataset_config: DataConfig | Mapping[str, Any] | None


class DataParallelTrainer(PersistentWorkersMixin, RestoreMixin):
    """Runs one function on many workers.

        trainer = DataParallelTrainer(train_func, scaling_config=ScalingConfig(num_workers=4))
        result = trainer.fit()

    `train_loop_per_worker` takes `train_loop_config` as its only argument, or no argument. It may be defined anywhere,
    including in a notebook cell or as a closure. In a new run, `get_checkpoint()` returns `resume_from_checkpoint`.
    `validation_config` configures what `report(..., validation=True)` requests. The `datasets` are split among the
    workers as `dataset_config` says; the function gets its shard from `get_dataset_shard(name)`.
    """

    _default_backend: ClassVar[Callable[[], BackendConfig]] = BackendConfig
    _run_environment: RunEnvironment = RunEnvironment()
    _run_hooks: RunHooks = RunHooks()
    _init_args: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show the whole signature of a constructor whose `**arguments` stand for those of its parent class.

        `**arguments: Any` also takes others, which the constructor checks itself.
        """
        super().__init_subclass__(**kwargs)
        init: Any = cls.__init__
        *own, last = inspect.signature(init).parameters.values()
        if last.kind is last.VAR_KEYWORD and last.name == "arguments":
            known = {parameter.name for parameter in own} | {"backend_config"}
            inherited = inspect.signature(super(cls, cls).__init__).parameters.values()
            own += [parameter for parameter in inherited if parameter.name not in known]
            init.__signature__ = inspect.Signature([*own, last] if last.annotation in (Any, "Any") else own)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        trainer = super().__new__(cls)
        trainer._init_args = args, kwargs
        return trainer

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        backend_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | Mapping[str, Any] | None = None,
        run_config: RunConfig | Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        validation_config: ValidationConfig | Mapping[str, Any] | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | Mapping[str, Any] | None = None,
    ) -> None:
        self.train_loop_per_worker = train_loop_per_worker
        self.train_loop_config = train_loop_config
        self.backend_config = backend_config if backend_config is not None else type(self)._default_backend()
        self.scaling_config: ScalingConfig = coerce_config(ScalingConfig, scaling_config, "scaling_config")
        self.run_config: RunConfig = coerce_config(RunConfig, run_config, "run_config")
        self.resume_from_checkpoint = resume_from_checkpoint
        self.validation_config: ValidationConfig | None = None
        if validation_config is not None:
            self.validation_config = coerce_config(ValidationConfig, validation_config, "validation_config")
        self.datasets = datasets
        self.dataset_config: DataConfig = coerce_config(DataConfig, dataset_config, "dataset_config")
        self._dataset_spec = build_dataset_spec(datasets, self.dataset_config)
        check_instance("backend_config", self.backend_config, BackendConfig, "a paceline.train.BackendConfig")
        expected = "a paceline.train.Checkpoint"
        check_instance("resume_from_checkpoint", resume_from_checkpoint, Checkpoint, expected, optional=True)
        self._loop_config = resolve_loop_config(train_loop_per_worker, train_loop_config)
        self.backend_config.check(self.scaling_config.max_workers, self.scaling_config.use_gpu)

    def fit(self) -> Result:
        """Train until the function has returned on every worker.

        Raises `TrainingFailedError` if workers fail more often than `FailureConfig` allows; its `result` holds the
        progress until then. Ctrl-C once stops at the next report and returns; twice stops now. With
        `RunConfig(detached=True)` the run is driven on the cluster and only followed from here.
        """
        try:
            return self._fit()
        except PacelineError as error:
            failed = error
        # Drop our frames; the message is self-contained.
        raise failed.with_traceback(None)

    def _fit(self) -> Result:
        target = choose_target(self.scaling_config, self.run_config)
        target.check()
        spec = self._build_run_spec(target)
        if self.run_config.detached:
            from paceline.train.driver.detached import fit_detached

            return fit_detached(spec)
        terminal = make_terminal(self.run_config.location.layout, self.train_loop_config, inline=spec.is_inline)
        return execute_run(spec, terminal, self._run_environment, self._run_hooks)

    def _named_init_args(self) -> dict[str, Any]:
        """The constructor's arguments by name."""
        args, kwargs = self._init_args
        signature = inspect.signature(type(self).__init__)
        bound = signature.bind(self, *args, **kwargs).arguments
        named = {name: value for name, value in bound.items() if name in self._parameter_names()}
        more = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
        return {**named, **bound.get(more or "", {})}

    def _parameter_names(self) -> list[str]:
        parameters = [*inspect.signature(type(self).__init__).parameters.values()][1:]
        return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]

    def _accepts_argument(self, name: str) -> bool:
        """Whether the constructor has this argument, or checks further arguments itself."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        return name in self._parameter_names() or any(p.kind is p.VAR_KEYWORD for p in parameters)

    def _copy_with(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy; if there are changes, construct it anew with changed arguments. This trainer is unchanged."""
        trainer = type(self)(**{**self._named_init_args(), **changes})
        trainer._run_environment, trainer._run_hooks = self._run_environment, self._run_hooks
        return trainer

    def _build_run_spec(self, target: ExecutionTarget, parts: Job | None = None) -> RunSpec:
        """Check the arguments and build the run spec; by default for the trainer's own function."""
        preflight.check_limits(self.scaling_config.sizes[-1])
        preflight.check_initial_checkpoint(self.resume_from_checkpoint, self.run_config.location.layout)
        if parts is None:
            parts = (self.train_loop_per_worker, self._loop_config, self.backend_config)
        return RunSpec(
            job_parts=parts,
            pickled_job=pickle_job(*parts),
            run_config=self.run_config,
            run_context=self._make_run_context(None),
            scaling_config=self.scaling_config,
            target=target,
            is_inline=self.scaling_config.num_workers == 0,
            initial_checkpoint=self.resume_from_checkpoint,
            pickled_filesystem=pickle_filesystem(self.run_config.storage_filesystem),
            validation=_build_validation_spec(self.validation_config, target),
            datasets=self._dataset_spec,
            purpose=_find_purpose(self.run_config),
        )


def _find_purpose(config: RunConfig) -> str:
    callbacks = (callback for callback in config.callbacks if isinstance(callback, UserCallback))
    return next((callback._run_purpose for callback in callbacks if callback._run_purpose), "")


def _build_validation_spec(config: ValidationConfig | None, target: ExecutionTarget) -> ValidationSpec | None:
    if config is None:
        return None
    share = target.compute_auxiliary_share(num_cpus=config.num_cpus, num_gpus=config.num_gpus)
    return ValidationSpec(config, config.pickle_function(), share)


@contextlib.contextmanager
def override_fit(fit: Callable[[Any], Result]) -> Iterator[None]:
    """Replace `fit` of all trainers during the block, for tools that run an unmodified script."""
    before = DataParallelTrainer.fit
    DataParallelTrainer.fit = fit  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        DataParallelTrainer.fit = before  # type: ignore[method-assign]
