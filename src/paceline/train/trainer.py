"""DataParallelTrainer: keeps the arguments, makes a job of them, has it driven, returns a Result."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

from paceline._core.errors import PacelineError
from paceline._worker.main import Job
from paceline.train import preflight
from paceline.train.backend import BackendConfig
from paceline.train.callbacks import TrainRunContext, UserCallback
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig, as_config
from paceline.train.datasets import DataConfig, asked_data
from paceline.train.drive import Asked, AskedValidation, Seams, played
from paceline.train.job import called_with, pickled_filesystem, pickled_job
from paceline.train.older.restore import Restorable
from paceline.train.older.verbs import Verbs
from paceline.train.result import Result
from paceline.train.site import Site, site_of
from paceline.train.terminal import terminal_of
from paceline.train.validation import ValidationConfig


class DataParallelTrainer(Verbs, Restorable):
    """Runs one function on many workers.

        trainer = DataParallelTrainer(train_func, scaling_config=ScalingConfig(num_workers=4))
        result = trainer.fit()

    `train_loop_per_worker` takes the `train_loop_config` as its only argument, or nothing. It may be defined anywhere,
    a notebook cell or a closure included. `resume_from_checkpoint` is what `get_checkpoint()` gives in a new run.
    `validation_config` says what `report(..., validation=True)` asks for. The `datasets` are divided among the workers
    as `dataset_config` says; the function gets its part of one from `get_dataset_shard(name)`.
    """

    _default_backend: ClassVar[Callable[[], BackendConfig]] = BackendConfig
    _seams: Seams = Seams()
    _made_with: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made._made_with = args, kwargs
        return made

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
        self.scaling_config: ScalingConfig = as_config(ScalingConfig, scaling_config, "scaling_config")
        self.run_config: RunConfig = as_config(RunConfig, run_config, "run_config")
        self.resume_from_checkpoint = resume_from_checkpoint
        self.validation_config: ValidationConfig | None = (
            as_config(ValidationConfig, validation_config, "validation_config")
            if validation_config is not None
            else None
        )
        self.datasets = datasets
        self.dataset_config: DataConfig = as_config(DataConfig, dataset_config, "dataset_config")
        self._data = asked_data(datasets, self.dataset_config)
        if not isinstance(self.backend_config, BackendConfig):
            raise ValueError(f"backend_config={backend_config!r} is not a paceline.train.BackendConfig")
        if not isinstance(resume_from_checkpoint, Checkpoint | None):
            raise ValueError(f"resume_from_checkpoint={resume_from_checkpoint!r} is not a paceline.train.Checkpoint")
        self._call = called_with(train_loop_per_worker, train_loop_config)
        self.backend_config.check(self.scaling_config.max_workers, self.scaling_config.use_gpu)

    def fit(self) -> Result:
        """Train until the function has returned on every worker.

        Raises `TrainingFailedError` when workers failed more often than `FailureConfig` allows; its `result` has what
        was reached. Ctrl-C once stops at the next report and returns; twice stops now. With
        `RunConfig(detached=True)` the run is driven on the cluster, and only followed from here.
        """
        try:
            return self._fitted()
        except PacelineError as error:
            failed = error
        # What it says is all that there is to know: the way to it through our code would only hide that.
        raise failed.with_traceback(None)

    def _fitted(self) -> Result:
        site = site_of(self.scaling_config, self.run_config)
        site.check()
        asked = self._asked(site)
        if self.run_config.detached:
            from paceline.train.detached import fitted_elsewhere

            return fitted_elsewhere(asked)
        terminal = terminal_of(self.run_config.home.layout, self.train_loop_config, inline=asked.inline)
        return played(asked, terminal, self._seams)

    def _arguments(self) -> dict[str, Any]:
        """What the constructor was given, by name."""
        args, kwargs = self._made_with
        signature = inspect.signature(type(self).__init__)
        bound = signature.bind(self, *args, **kwargs).arguments
        named = {name: value for name, value in bound.items() if name in self._parameters()}
        more = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
        return {**named, **bound.get(more or "", {})}

    def _parameters(self) -> list[str]:
        """The names of the constructor's arguments."""
        parameters = [*inspect.signature(type(self).__init__).parameters.values()][1:]
        return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]

    def _takes(self, name: str) -> bool:
        """Whether the constructor has this argument, or says itself which others it has."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        return name in self._parameters() or any(p.kind is p.VAR_KEYWORD for p in parameters)

    def _with(self, changes: Mapping[str, Any]) -> Self:
        """Another one, made by the constructor of other arguments where there are changes. This one stays as it is."""
        made = type(self)(**{**self._arguments(), **changes})
        if "_seams" in vars(self):
            made._seams = self._seams
        return made

    def _asked(self, site: Site, parts: Job | None = None) -> Asked:
        """What is to be driven, checked; by default the trainer's own function."""
        home = self.run_config.home
        preflight.check_limits(self.scaling_config.sizes[-1])
        preflight.check_initial(self.resume_from_checkpoint, home.layout)
        if parts is None:
            parts = (self.train_loop_per_worker, self._call, self.backend_config)
        return Asked(
            parts=parts,
            job=pickled_job(*parts),
            run_config=self.run_config,
            about=TrainRunContext(
                home.name,
                self.run_config,
                self.train_loop_config,
                self.scaling_config,
                self.backend_config,
                self.dataset_config,
            ),
            scaling=self.scaling_config,
            site=site,
            inline=self.scaling_config.num_workers == 0,
            initial=self.resume_from_checkpoint,
            filesystem=pickled_filesystem(self.run_config.storage_filesystem),
            validation=_validation(self.validation_config, site),
            data=self._data,
            purpose=_purpose(self.run_config),
        )


def _purpose(config: RunConfig) -> str:
    callbacks = (callback for callback in config.callbacks if isinstance(callback, UserCallback))
    return next((callback._made_for for callback in callbacks if callback._made_for), "")


def _validation(config: ValidationConfig | None, site: Site) -> AskedValidation | None:
    if config is None:
        return None
    share = site.share_beside(num_cpus=config.num_cpus, num_gpus=config.num_gpus)
    return AskedValidation(config, config.pickled(), share)


@contextlib.contextmanager
def fitted_by(fit: Callable[[Any], Result]) -> Iterator[None]:
    """Have trainers fitted by another function for as long as a block lasts: for what runs a script as it is."""
    before = DataParallelTrainer.fit
    DataParallelTrainer.fit = fit  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        DataParallelTrainer.fit = before  # type: ignore[method-assign]
