"""`DataParallelTrainer`: holds its arguments as a value, has a run built from them and driven, returns a `Result`."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar

from paceline._core.errors import PacelineError, TrainingFailedError, TrainingInterrupt
from paceline._core.lazy_imports import make_lazy_getattr
from paceline.train.backend import BackendConfig
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.driver.datasets import DataConfig
from paceline.train.driver.trainer_arguments import TrainerArguments, run_trainer
from paceline.train.driver.validation import ValidationConfig
from paceline.train.older.trainer_verbs import TrainerVerbs
from paceline.train.result import Result

T = TypeVar("T")


class TrainerOptions(TypedDict, total=False):
    """The arguments that the trainers of all frameworks share."""

    train_loop_config: Mapping[str, Any] | None
    scaling_config: ScalingConfig | Mapping[str, Any] | None
    run_config: RunConfig | Mapping[str, Any] | None
    resume_from_checkpoint: Checkpoint | None
    validation_config: ValidationConfig | Mapping[str, Any] | None
    datasets: Mapping[str, Any] | None
    dataset_config: DataConfig | Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None


class _Argument(Generic[T]):
    """An attribute that reads one of the trainer's arguments; assigning to it replaces them."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, trainer: DataParallelTrainer | None, owner: type) -> T:
        if trainer is None:
            raise AttributeError(f"{self._name} is an attribute of instances of {owner.__name__}")
        value: T = getattr(trainer.trainer_arguments, self._name)
        return value

    def __set__(self, trainer: DataParallelTrainer, value: Any) -> None:
        if hasattr(trainer, "trainer_arguments"):  # Not yet in a subclass, before it calls our constructor.
            trainer.trainer_arguments = trainer.trainer_arguments.replace(**{self._name: value})


class DataParallelTrainer(TrainerVerbs):
    """Runs one function on many workers.

        trainer = DataParallelTrainer(train_func, scaling_config=ScalingConfig(num_workers=4))
        result = trainer.fit()

    `train_loop_per_worker` takes `train_loop_config` as its only argument, or no argument. It may be defined anywhere,
    including in a notebook cell or as a closure. In a new run, `get_checkpoint()` returns `resume_from_checkpoint`.
    `validation_config` configures what `report(..., validation=True)` requests. The `datasets` are split among the
    workers as `dataset_config` says; the function gets its shard from `get_dataset_shard(name)`. `metadata`, a dict of
    JSON values, is what `get_context().get_metadata()` returns, and is added to the metadata of every checkpoint.
    """

    trainer_arguments: TrainerArguments
    """The constructor's arguments, checked: a frozen value."""
    train_loop_per_worker: _Argument[Any] = _Argument()
    train_loop_config: _Argument[Mapping[str, Any] | None] = _Argument()
    backend_config: _Argument[BackendConfig] = _Argument()
    scaling_config: _Argument[ScalingConfig] = _Argument()
    run_config: _Argument[RunConfig] = _Argument()
    resume_from_checkpoint: _Argument[Checkpoint | None] = _Argument()
    validation_config: _Argument[ValidationConfig | None] = _Argument()
    datasets: _Argument[Mapping[str, Any] | None] = _Argument()
    dataset_config: _Argument[DataConfig] = _Argument()
    metadata: _Argument[Mapping[str, Any] | None] = _Argument()
    _default_backend: ClassVar[Callable[[], BackendConfig]] = BackendConfig
    _backend_argument: ClassVar[str] = "backend_config"
    """What the constructor calls `backend_config`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show the whole signature of a constructor whose `**arguments` stand for those of its parent class.

        `**arguments: Any` also takes others, which the constructor checks itself.
        """
        super().__init_subclass__(**kwargs)
        if "training_loop" in vars(cls):
            raise TypeError(
                f"{cls.__name__}.training_loop would never be called: a trainer runs a function on its workers\n\n"
                "hint: pass the function as train_loop_per_worker to DataParallelTrainer or a subclass"
            )
        init: Any = cls.__init__
        *own, last = inspect.signature(init).parameters.values()
        if last.kind is last.VAR_KEYWORD and last.name == "arguments":
            known = {parameter.name for parameter in own} | {"backend_config"}
            inherited = inspect.signature(super(cls, cls).__init__).parameters.values()
            own += [parameter for parameter in inherited if parameter.name not in known]
            init.__signature__ = inspect.Signature([*own, last] if last.annotation in (Any, "Any") else own)

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
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.trainer_arguments = TrainerArguments.parse(
            train_loop_per_worker=train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=backend_config if backend_config is not None else type(self)._default_backend(),
            scaling_config=scaling_config,
            run_config=run_config,
            resume_from_checkpoint=resume_from_checkpoint,
            validation_config=validation_config,
            datasets=datasets,
            dataset_config=dataset_config,
            metadata=metadata,
        )

    def fit(self) -> Result:
        """Train until the function has returned on every worker.

        Raises `TrainingFailedError` if workers fail more often than `FailureConfig` allows; its `result` holds the
        progress until then. Ctrl-C once stops at the next report, twice now; both raise `TrainingInterrupt`, which has
        the `result`, too. With `RunConfig(detached=True)` the run is driven on the cluster and only followed from here.
        """
        failed: BaseException
        try:
            return _fits[-1](self)
        except TrainingFailedError as error:
            is_raised = self.run_config.failure_config.fail_fast == "raise" and error.__cause__ is not None
            failed = error.__cause__ if is_raised and error.__cause__ is not None else error
        except PacelineError as error:
            failed = error
        except TrainingInterrupt as error:
            failed = error.for_caller()
        # Drop our frames; the message is self-contained.
        raise failed.with_traceback(None)

    def replace_arguments(self, **changes: Any) -> Self:
        """Return a copy of this trainer with other arguments; this one is unchanged.

        The constructor is not called. A subclass whose constructor has arguments of its own overrides this method if
        searches are to vary those.
        """
        if self._backend_argument in changes:
            backend = changes.pop(self._backend_argument)
            changes["backend_config"] = backend if backend is not None else type(self)._default_backend()
        for name in changes.keys() - {field.name for field in fields(TrainerArguments)}:
            kind = type(self).__name__
            raise TypeError(
                f"{kind} cannot replace its argument {name!r}\n\n"
                f"hint: define {kind}.replace_arguments(self, **changes) to return a trainer with another {name}"
            )
        trainer = copy.copy(self)
        trainer._workers = None
        trainer.trainer_arguments = self.trainer_arguments.replace(**changes)
        return trainer


BaseTrainer = DataParallelTrainer
"""The name of all trainers' base class in Ray 2.0, for type hints and `isinstance`."""

Fit = Callable[[DataParallelTrainer], Result]

_fits: list[Fit] = [lambda trainer: run_trainer(trainer.trainer_arguments)]
"""What `fit()` of every trainer calls is the last of these."""


@contextlib.contextmanager
def intercept_fits(intercept: Callable[[DataParallelTrainer, Fit], Result]) -> Iterator[None]:
    """During the block, `trainer.fit()` calls `intercept(trainer, fit)`, where `fit(trainer)` does what it did before.

    For tools that run an unmodified script. It holds for all trainers, in all threads.
    """
    before = _fits[-1]
    _fits.append(lambda trainer: intercept(trainer, before))
    try:
        yield
    finally:
        _fits.pop()


__getattr__ = make_lazy_getattr(__name__, {"paceline.train.older.trainer": ("Trainer",)})
