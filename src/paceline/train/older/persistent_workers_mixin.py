"""`start`, `run`, `shutdown`, `save_checkpoint`, `load_checkpoint`: a trainer whose workers persist between runs.

Every trainer has these beside `fit()`. A trainer has one directory for everything that it runs: the report numbers
continue, and a trainer that is started again resumes in it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import cloudpickle

from paceline._control.recovery import load_history
from paceline._control.report_aggregator import own_metrics
from paceline._control.run import Run
from paceline._core import settings
from paceline._core.arguments import bad_value
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._engine.local.launchers import prewarm
from paceline._storage.commit import rank_checkpoints
from paceline._storage.run_layout import SAVED_PREFIX
from paceline.train.callbacks import TrainRunContext
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import CheckpointConfig, RunConfig, ScalingConfig, check_callbacks, coerce_config
from paceline.train.driver.datasets import DataConfig, build_dataset_spec
from paceline.train.driver.execution_target import ExecutionTarget, choose_target
from paceline.train.driver.job import pickle_job
from paceline.train.driver.run_spec import RunEnvironment, RunSpec
from paceline.train.driver.worker_setup import to_retention
from paceline.train.older.function_lookup import find_function, resolve_call_config
from paceline.train.older.persistent_workers import (
    PersistentWorkers,
    PersistentWorkersTerminal,
    RunCallbacks,
    TrainingIterator,
)
from paceline.train.older.task_loop import WorkerTask, run_task_loop

if TYPE_CHECKING:
    from paceline.train.backend import BackendConfig


class PersistentWorkersMixin:
    """The methods of a trainer with persistent workers, beside `fit()`."""

    train_loop_per_worker: Any
    train_loop_config: Mapping[str, Any] | None
    scaling_config: ScalingConfig
    run_config: RunConfig
    backend_config: BackendConfig
    datasets: Mapping[str, Any] | None
    dataset_config: DataConfig
    _run_environment: RunEnvironment
    _workers: PersistentWorkers | None = None
    _next_checkpoint: Checkpoint | None = None

    def _build_run_spec(self, target: ExecutionTarget, parts: Any = None) -> RunSpec:
        raise NotImplementedError

    def start(self) -> None:
        """Start the workers and return once they are ready. Does nothing if they are running."""
        if self._workers is not None:
            if self._workers.is_alive:
                return
            self._workers.raise_unreported()
        if self.scaling_config.num_workers == 0:
            raise ValueError("persistent workers need num_workers of at least 1: use fit(), or num_workers=1")
        if self.run_config.detached:
            raise ValueError("RunConfig(detached=True) needs fit(): persistent workers belong to this script")
        target = choose_target(self.scaling_config, self.run_config)
        target.check()
        spec = replace(self._build_run_spec(target, (run_task_loop, None, self.backend_config)), datasets=None)
        if self.backend_config.start_method == "fork":
            prewarm(*self.backend_config.preload)
        chosen, layout = settings.load(), self.run_config.location.layout
        terminal = PersistentWorkersTerminal(layout, chosen.verbosity, chosen.report_notice_s)
        workers = PersistentWorkers(spec, terminal, self._run_environment)
        self._workers = workers
        # A trainer that is garbage-collected stops its workers.
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

        The default for `fn` is the trainer's own function, or else the caller's `train_loop_per_worker` or
        `train_func`. The workers of the previous run are reused, including the state of their modules, and started if
        needed. The first run after a start resumes from the newest checkpoint in the trainer's directory. Every other
        run begins without a checkpoint, or with the one passed: a `Checkpoint`, a path, or a dict to make one from.

        Raises `TrainingFailedError` if workers fail more often than allowed; the workers are then gone, and `start()`
        or the next `run()` starts new ones.
        """
        function = find_function(fn, self.train_loop_per_worker, depth=2)
        checked = list(callbacks or ())
        check_callbacks(checked)
        with self._prepare_task(function, config, dataset, checkpoint) as (workers, job):
            run_callbacks = None
            if checked:
                store = self.run_config.location.open_run_store_for_reading()
                run_callbacks = RunCallbacks(checked, self._make_run_context(config), store)
            return workers.run_task(job, _parse_retention(checkpoint_strategy), run_callbacks)

    def run_iterator(
        self,
        fn: Callable[..., Any] | str | None = None,
        config: Mapping[str, Any] | None = None,
        dataset: Any = None,
        checkpoint: Any = None,
        checkpoint_strategy: CheckpointConfig | Mapping[str, Any] | None = None,
    ) -> TrainingIterator:
        """Like `run()`, but return an iterator over the reports: each is a list of the ranks' metrics.

        Its `get_final_results()` returns what `run()` would have returned.
        """
        function = find_function(fn, self.train_loop_per_worker, depth=2)
        return TrainingIterator(self._iterate_reports(function, config, dataset, checkpoint, checkpoint_strategy))

    def shutdown(self) -> None:
        """Stop the workers and free their resources. May be called again."""
        if self._workers is not None:
            self._workers.close()
            self._workers.raise_unreported()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def save_checkpoint(self) -> Checkpoint:
        """Return the newest checkpoint of this trainer, durable and committed like every checkpoint."""
        checkpoint = self._open_checkpoint(self._current_run().latest)
        if checkpoint is None:
            raise RuntimeError(
                f"no checkpoint in {self.logdir}\n\n"
                "hint: call train.save_checkpoint(...) or train.report(..., checkpoint=...) in the train function"
            )
        return checkpoint

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Let the next `run()` start from this: a `Checkpoint`, a path, or a dict to make one from."""
        self._next_checkpoint = _to_checkpoint(checkpoint)

    @property
    def latest_checkpoint(self) -> Any:
        """The state in the newest checkpoint if made from a dict, else the `Checkpoint`. None if there is none."""
        return _unpack_state(self._open_checkpoint(self._current_run().latest))

    @property
    def best_checkpoint(self) -> Any:
        """Like `latest_checkpoint`, for the best kept one by `checkpoint_score_attribute`; without that, the newest."""
        return _unpack_state(self._open_checkpoint(self._best_record()))

    @property
    def best_checkpoint_path(self) -> Path | None:
        best = self._open_checkpoint(self._best_record())
        return Path(best.path) if best is not None else None

    @property
    def latest_checkpoint_dir(self) -> Path | None:
        """The directory of the checkpoints; None if there is none yet."""
        return self.logdir if self._current_run().latest is not None else None

    @property
    def latest_run_dir(self) -> Path | None:
        """The directory of the last run: the trainer's directory, which all its runs share. None before the first."""
        return self.logdir if self._workers is not None and self._workers.num_tasks else None

    @property
    def logdir(self) -> Path:
        """The trainer's directory."""
        return self.run_config.path

    def _iterate_reports(
        self, function: Callable[..., Any], config: Any, dataset: Any, checkpoint: Any, strategy: Any
    ) -> Generator[list[dict[str, Any]], None, list[Any]]:
        with self._prepare_task(function, config, dataset, checkpoint) as (workers, job):
            for row in workers.iterate_task(job, _parse_retention(strategy)):
                if not (row[0].checkpoint or "").startswith(SAVED_PREFIX):
                    yield [own_metrics(each) for each in row]
            return workers.return_values()

    def _make_run_context(self, config: Mapping[str, Any] | None) -> TrainRunContext:
        configs = self.scaling_config, self.backend_config, self.dataset_config
        return TrainRunContext(self.run_config.location.name, self.run_config, self._resolve_config(config), *configs)

    def _resolve_config(self, config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return config if config is not None else self.train_loop_config

    @contextlib.contextmanager
    def _prepare_task(
        self, function: Callable[..., Any], config: Mapping[str, Any] | None, dataset: Any, checkpoint: Any
    ) -> Iterator[tuple[PersistentWorkers, bytes]]:
        """Start the workers if needed, build the job of a task, and serve its datasets while it runs."""
        call = resolve_call_config(function, self._resolve_config(config))
        start_checkpoint = _to_checkpoint(checkpoint) or self._next_checkpoint
        datasets = self.datasets if dataset is None else dataset
        if datasets is not None and not isinstance(datasets, Mapping):
            datasets = {"train": datasets}
        data = build_dataset_spec(datasets, self.dataset_config)
        self.start()
        workers, self._next_checkpoint = self._workers, None
        assert workers is not None
        run = workers.run
        assert run is not None
        ignores_earlier = workers.num_tasks > 0 or start_checkpoint is not None
        target = choose_target(self.scaling_config, self.run_config)
        # The trainer's terminal already shows the messages of the data service.
        with target.serve_datasets(data, lambda _: None) as endpoint:
            task = WorkerTask(
                function=function,
                config=call,
                checkpoint=start_checkpoint,
                checkpoints_after=(run.latest.seq if run.latest is not None else 0) if ignores_earlier else -1,
                num_earlier_reports=workers.num_reports,
                shards=data.shards if data is not None else (),
                data_address=endpoint.address,
            )
            pickle_job(function, call, self.backend_config)  # Raises an error that names what does not pickle.
            yield workers, cloudpickle.dumps(task)

    def _current_run(self) -> Run:
        """The run's current state, or the one recorded in its directory."""
        if self._workers is not None and self._workers.run is not None:
            return self._workers.run
        return load_history(self.run_config.location.open_run_store_for_reading())[0]

    def _best_record(self) -> CheckpointRecord | None:
        run = self._current_run()
        order = rank_checkpoints(run.checkpoints, run.retention.score_attribute, run.retention.score_order)
        return order[-1] if order else None

    def _open_checkpoint(self, record: CheckpointRecord | None) -> Checkpoint | None:
        if record is None:
            return None
        return Checkpoint(*self.run_config.location.open_run_store_for_reading().locate_checkpoint(record))


def _to_checkpoint(checkpoint: Any) -> Checkpoint | None:
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        return checkpoint
    if isinstance(checkpoint, dict):
        return Checkpoint.from_dict(checkpoint)
    if isinstance(checkpoint, str | Path):
        return Checkpoint.from_directory(checkpoint)
    raise bad_value("checkpoint", "a paceline.train.Checkpoint, a path or a dict", checkpoint)


def _unpack_state(checkpoint: Checkpoint | None) -> Any:
    return checkpoint.to_dict() if checkpoint is not None and checkpoint.holds_dict() else checkpoint


def _parse_retention(strategy: CheckpointConfig | Mapping[str, Any] | None) -> Any:
    if strategy is None:
        return None
    return to_retention(coerce_config(CheckpointConfig, strategy, "checkpoint_strategy"))
