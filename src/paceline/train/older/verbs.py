"""`start`, `run`, `shutdown`, `save_checkpoint`, `load_checkpoint`: a trainer whose workers stay between runs.

Beside `fit()`, for every trainer. The run of a trainer is one directory, whatever is run in it: reports are counted on,
and a trainer that is started again goes on in it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from paceline._control.gathering import own_metrics
from paceline._control.recover import history_of
from paceline._control.run import Run
from paceline._core import settings
from paceline._engine.local.launch import prewarm
from paceline._engine.messages import CheckpointRecord
from paceline._storage.layout import SAVED
from paceline._storage.retention import ranked
from paceline.train.callbacks import TrainRunContext
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import CheckpointConfig, RunConfig, ScalingConfig, as_config
from paceline.train.datasets import DataConfig, asked_data
from paceline.train.drive import Asked, Seams, retention_of
from paceline.train.job import pickled_job
from paceline.train.older.callbacks import RunCallbacks, checked
from paceline.train.older.chosen import called, function_for
from paceline.train.older.iterator import TrainingIterator
from paceline.train.older.standing import Task, stand_by
from paceline.train.older.workers import StandingTerminal, Workers
from paceline.train.site import Site, site_of

if TYPE_CHECKING:
    from paceline.train.backend import BackendConfig


class Verbs:
    """What a trainer is given beside `fit()`."""

    train_loop_per_worker: Any
    train_loop_config: Mapping[str, Any] | None
    scaling_config: ScalingConfig
    run_config: RunConfig
    backend_config: BackendConfig
    datasets: Mapping[str, Any] | None
    dataset_config: DataConfig
    _seams: Seams
    _workers: Workers | None = None
    _given: Checkpoint | None = None

    def _asked(self, site: Site, parts: Any = None) -> Asked:
        raise NotImplementedError

    def start(self) -> None:
        """Start the workers, and return once they are ready. Where they are already, nothing is done."""
        if self._workers is not None:
            if self._workers.alive:
                return
            self._workers.raise_untold()
        _check(self.scaling_config, self.run_config)
        site = site_of(self.scaling_config, self.run_config)
        site.check()
        asked = replace(self._asked(site, (stand_by, None, self.backend_config)), data=None)
        if self.backend_config.start_method == "fork":
            prewarm(*self.backend_config.preload)
        chosen = settings.load()
        terminal = StandingTerminal(self.run_config.home.layout, chosen.verbosity, chosen.report_notice_s)
        workers = Workers(asked, terminal, self._seams)
        self._workers = workers
        # A trainer that nobody has any more takes its workers along.
        weakref.finalize(self, workers.close).atexit = False
        workers.wait_until_ready()

    def run(
        self,
        fn: Callable[..., Any] | str | None = None,
        config: Mapping[str, Any] | None = None,
        callbacks: Any = None,
        dataset: Any = None,
        checkpoint: Any = None,
        checkpoint_strategy: CheckpointConfig | Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Run a function on all workers, and return what each of them returned, by rank.

        Without `fn` it is the trainer's own, or else the caller's `train_loop_per_worker` or `train_func`. The workers
        are those of the run before, with all that their modules hold; they are started where they are not. The first
        run after a start goes on from the newest checkpoint of the trainer's directory; each other one begins without
        a checkpoint, or with the one it is given, as a `Checkpoint`, a path, or the dict to make one of.

        Raises `TrainingFailedError` when workers failed more often than allowed; the workers are gone then, and
        `start()` or the next `run()` starts others.
        """
        function = function_for(fn, self.train_loop_per_worker, depth=2)
        wanted = checked(callbacks)
        with self._ordered(function, config, dataset, checkpoint) as job:
            workers = self._standing()
            told = RunCallbacks(wanted, self._about(config), self.run_config.home.depot_to_read()) if wanted else None
            return workers.done(job, _retention(checkpoint_strategy), told)

    def run_iterator(
        self,
        fn: Callable[..., Any] | str | None = None,
        config: Mapping[str, Any] | None = None,
        dataset: Any = None,
        checkpoint: Any = None,
        checkpoint_strategy: CheckpointConfig | Mapping[str, Any] | None = None,
    ) -> TrainingIterator:
        """The same, report by report: an iterator over lists of what the ranks reported, each a dict.

        `get_final_results()` of it has what `run()` would have returned.
        """
        function = function_for(fn, self.train_loop_per_worker, depth=2)
        return TrainingIterator(self._iterated(function, config, dataset, checkpoint, checkpoint_strategy))

    def shutdown(self) -> None:
        """End the workers, and free all that was theirs. May be called again."""
        if self._workers is not None:
            self._workers.close()
            self._workers.raise_untold()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def save_checkpoint(self) -> Checkpoint:
        """The newest checkpoint of this trainer: durable and committed, as all of them are."""
        checkpoint = self._placed(self._run_of_it().latest)
        if checkpoint is None:
            raise RuntimeError(
                f"no checkpoint has been made in {self.logdir}\n\n"
                "hint: train.save_checkpoint(...) or train.report(..., checkpoint=...) in the train function makes one"
            )
        return checkpoint

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Let the next `run()` begin with this: a `Checkpoint`, a path, or the dict to make one of."""
        self._given = _as_checkpoint(checkpoint)

    @property
    def latest_checkpoint(self) -> Any:
        """What the newest checkpoint holds, where it was made of a dict; else the `Checkpoint`. None without any."""
        return _held(self._placed(self._run_of_it().latest))

    @property
    def best_checkpoint(self) -> Any:
        """The same of the best of those that are kept, by `checkpoint_score_attribute`; the newest without one."""
        return _held(self._placed(self._best()))

    @property
    def best_checkpoint_path(self) -> Path | None:
        best = self._placed(self._best())
        return Path(best.path) if best is not None else None

    @property
    def latest_checkpoint_dir(self) -> Path | None:
        """The directory that holds the checkpoints; None where there is none yet."""
        return self.logdir if self._run_of_it().latest is not None else None

    @property
    def latest_run_dir(self) -> Path | None:
        """The directory of what was run last: that of the trainer, which all its runs share. None before the first."""
        return self.logdir if self._workers is not None and self._workers.num_given else None

    @property
    def logdir(self) -> Path:
        """The trainer's directory."""
        return self.run_config.path

    def _iterated(
        self, function: Callable[..., Any], config: Any, dataset: Any, checkpoint: Any, strategy: Any
    ) -> Generator[list[dict[str, Any]], None, list[Any]]:
        with self._ordered(function, config, dataset, checkpoint) as job:
            workers = self._standing()
            for row in workers.doing(job, _retention(strategy)):
                if not (row[0].checkpoint or "").startswith(SAVED):
                    yield [own_metrics(each) for each in row]
            return workers.values()

    def _about(self, config: Mapping[str, Any] | None) -> TrainRunContext:
        name = self.run_config.home.name
        return TrainRunContext(
            name,
            self.run_config,
            self._config(config),
            self.scaling_config,
            self.backend_config,
            self.dataset_config,
        )

    def _standing(self) -> Workers:
        self.start()
        assert self._workers is not None
        return self._workers

    def _config(self, config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return config if config is not None else self.train_loop_config

    @contextlib.contextmanager
    def _ordered(
        self, function: Callable[..., Any], config: Mapping[str, Any] | None, dataset: Any, checkpoint: Any
    ) -> Iterator[bytes]:
        """The job of an order; its datasets are served for as long as it is under way."""
        call = called(function, self._config(config))
        given = _as_checkpoint(checkpoint)
        if given is None:
            given = self._given
        datasets = self.datasets if dataset is None else dataset
        if datasets is not None and not isinstance(datasets, Mapping):
            datasets = {"train": datasets}
        data = asked_data(datasets, self.dataset_config)
        workers = self._standing()
        self._given = None
        run = workers.run
        assert run is not None
        begun = workers.num_given > 0 or given is not None
        site = site_of(self.scaling_config, self.run_config)
        with site.served(data, _quietly) as served:
            task = Task(
                function=function,
                config=call,
                checkpoint=given,
                since=(run.latest.seq if run.latest is not None else 0) if begun else -1,
                first=workers.num_reports,
                shards=data.shards if data is not None else (),
                data_address=served.address,
            )
            yield _pickled(task, self.backend_config)

    def _run_of_it(self) -> Run:
        """As it stands now, or as it lies in its directory."""
        if self._workers is not None and self._workers.run is not None:
            return self._workers.run
        return history_of(self.run_config.home.depot_to_read())[0]

    def _best(self) -> CheckpointRecord | None:
        run = self._run_of_it()
        order = ranked(run.checkpoints, run.retention.score_attribute, run.retention.score_order)
        return order[-1] if order else None

    def _placed(self, record: CheckpointRecord | None) -> Checkpoint | None:
        if record is None:
            return None
        return Checkpoint(*self.run_config.home.depot_to_read().place(record))


def _check(scaling: ScalingConfig, config: RunConfig) -> None:
    if scaling.num_workers == 0:
        raise ValueError("num_workers=0 has no workers that could stay: use fit(), or num_workers=1")
    if config.detached:
        raise ValueError("RunConfig(detached=True) is for fit(): workers that stay belong to this script")


def _as_checkpoint(checkpoint: Any) -> Checkpoint | None:
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        return checkpoint
    if isinstance(checkpoint, dict):
        return Checkpoint.from_dict(checkpoint)
    if isinstance(checkpoint, str | Path):
        return Checkpoint.from_directory(checkpoint)
    raise ValueError(f"checkpoint={checkpoint!r} is not a paceline.train.Checkpoint, a path, or a dict to make one of")


def _held(checkpoint: Checkpoint | None) -> Any:
    if checkpoint is None or not checkpoint.holds_dict():
        return checkpoint
    return checkpoint.to_dict()


def _retention(strategy: CheckpointConfig | Mapping[str, Any] | None) -> Any:
    if strategy is None:
        return None
    return retention_of(as_config(CheckpointConfig, strategy, "checkpoint_strategy"))


def _pickled(task: Task, backend: BackendConfig) -> bytes:
    import cloudpickle

    pickled_job(task.function, task.config, backend)  # Names what does not pickle, and the way to it.
    data: bytes = cloudpickle.dumps(task)
    return data


def _quietly(_: str) -> None:
    """What serves datasets has nothing to say here that the trainer's terminal would not."""
