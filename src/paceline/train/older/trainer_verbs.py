"""The verbs of every trainer beside `fit()`: persistent workers as in Ray 1.x, and restoring from a path.

A trainer has one directory for everything that it runs: the report numbers continue, and a trainer that is started
again resumes in it. What drives the workers is imported when they are started.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from paceline._control.events import RunDescribed
from paceline._control.recovery import load_history
from paceline._control.run import Run
from paceline._core.arguments import bad_value
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.frames import is_library_file
from paceline._storage.commit import rank_checkpoints
from paceline._storage.run_location import RunLocation
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import CheckpointConfig, RunConfig, ScalingConfig, check_callbacks, coerce_config
from paceline.train.driver.code_fingerprint import find_changed_parts, fingerprint_code
from paceline.train.driver.trainer_arguments import TrainerArguments

if TYPE_CHECKING:
    from paceline.train.older.persistent_workers import PersistentWorkers, PreparedTask, TrainingIterator


class TrainerVerbs:
    """The methods of a trainer beside `fit()`."""

    trainer_arguments: TrainerArguments
    train_loop_per_worker: Any
    _workers: PersistentWorkers | None = None
    _next_checkpoint: Checkpoint | None = None

    def start(self) -> None:
        """Start the workers and return once they are ready. Does nothing if they are running."""
        if self._workers is not None:
            if self._workers.is_alive:
                return
            self._workers.raise_unreported()
        from paceline.train.older.persistent_workers import start_workers

        self._workers = workers = start_workers(self.trainer_arguments)
        # A trainer that is garbage-collected stops its workers.
        weakref.finalize(self, workers.close).atexit = False
        workers.wait_until_ready()

    def run(
        self,
        train_func: Callable[..., Any] | str | None = None,
        config: Mapping[str, Any] | None = None,
        callbacks: Any = None,
        dataset: Any = None,
        checkpoint: Any = None,
        checkpoint_strategy: CheckpointConfig | Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Run a function on all workers, and return the return values by rank.

        The default for `train_func` is the trainer's own function, or else the caller's `train_loop_per_worker` or
        `train_func`. The workers of the previous run are reused, including the state of their modules, and started if
        needed. The first run after a start resumes from the newest checkpoint in the trainer's directory. Every other
        run begins without a checkpoint, or with the one passed: a `Checkpoint`, a path, or a dict to make one from.

        Raises `TrainingFailedError` if workers fail more often than allowed; the workers are then gone, and `start()`
        or the next `run()` starts new ones.
        """
        from paceline.train.older import persistent_workers

        function = persistent_workers.find_function(train_func, self.train_loop_per_worker)
        observers = list(callbacks or ())
        check_callbacks(observers)
        with self._prepare_task(function, config, dataset, checkpoint) as (workers, job):
            run_callbacks = None
            if observers:
                arguments = self.trainer_arguments
                store = arguments.run_config.location.open_run_store_for_reading()
                run_callbacks = persistent_workers.RunCallbacks(observers, arguments.make_run_context(config), store)
            return workers.run_task(job, checkpoint_strategy, run_callbacks)

    def run_iterator(
        self,
        train_func: Callable[..., Any] | str | None = None,
        config: Mapping[str, Any] | None = None,
        dataset: Any = None,
        checkpoint: Any = None,
        checkpoint_strategy: CheckpointConfig | Mapping[str, Any] | None = None,
    ) -> TrainingIterator:
        """Like `run()`, but return an iterator over the reports: each is a list of the ranks' metrics.

        Its `get_final_results()` returns what `run()` would have returned.
        """
        from paceline.train.older import persistent_workers

        function = persistent_workers.find_function(train_func, self.train_loop_per_worker)
        task = self._prepare_task(function, config, dataset, checkpoint)
        return persistent_workers.TrainingIterator(task, checkpoint_strategy)

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
        return self.trainer_arguments.run_config.path

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

        Pass its config and the datasets again. A run stores the name of its `train_loop_per_worker`, but no code: a
        function of yours with this name that has not changed is used, else pass it too. Without a `scaling_config`, it
        uses as many workers as the run had.
        """
        location = RunLocation.from_path(os.fspath(path), storage_filesystem)
        run = _load_run(location)
        if run is None:
            raise ValueError(f"no run at {os.fspath(path)}: pass the path RunConfig(storage_path)/name")
        if train_loop_per_worker is None and "label_column" not in arguments:  # Trees need no function.
            train_loop_per_worker = _find_function(location, arguments, f"{cls.__name__}.restore({os.fspath(path)!r}")
        config: RunConfig = coerce_config(RunConfig, run_config, "run_config")
        config = dataclasses.replace(
            config,
            name=location.name,
            storage_path=location.storage_path,
            storage_filesystem=storage_filesystem,
            if_exists="resume",
        )
        return cls(
            train_loop_per_worker,  # type: ignore[call-arg]
            scaling_config=scaling_config if scaling_config is not None else ScalingConfig(num_workers=run.size),
            run_config=config,
            **arguments,
        )

    def _prepare_task(
        self, function: Callable[..., Any], config: Mapping[str, Any] | None, dataset: Any, checkpoint: Any
    ) -> AbstractContextManager[PreparedTask]:
        from paceline.train.older.persistent_workers import prepare_task

        def start() -> PersistentWorkers:
            self.start()
            self._next_checkpoint = None
            assert self._workers is not None
            return self._workers

        initial = _to_checkpoint(checkpoint) or self._next_checkpoint
        return prepare_task(self.trainer_arguments, start, function, config, dataset, initial)

    def _current_run(self) -> Run:
        if self._workers is not None and self._workers.run is not None:
            return self._workers.run
        return load_history(self.trainer_arguments.run_config.location.open_run_store_for_reading())[0]

    def _best_record(self) -> CheckpointRecord | None:
        run = self._current_run()
        order = rank_checkpoints(run.checkpoints, run.retention.score_attribute, run.retention.score_order)
        return order[-1] if order else None

    def _open_checkpoint(self, record: CheckpointRecord | None) -> Checkpoint | None:
        if record is None:
            return None
        return Checkpoint(
            *self.trainer_arguments.run_config.location.open_run_store_for_reading().locate_checkpoint(record)
        )


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


def _find_function(location: RunLocation, arguments: Mapping[str, Any], call: str) -> Any:
    """Return the function of a run by its name; `arguments` are those that the caller passes again."""
    _, history = load_history(location.open_run_store_for_reading())
    described = next((event for event in reversed(history) if isinstance(event, RunDescribed)), None)
    about = msgspec.json.decode(described.about) if described is not None else {}
    name = about.get("code", {}).get("function", "")
    function = _import_own_function(name)
    if function is None or "" in find_changed_parts(about.get("fingerprint"), fingerprint_code(function)):
        problem = f"has changed since: {name}" if function is not None else f"cannot be imported: {name or 'no name'}"
        raise ValueError(
            f"restore needs train_loop_per_worker: the run's function {problem}\n\n"
            f"hint: {call}, train_loop_per_worker=...)"
        )
    for argument, what in (("train_loop_config", "config"), ("datasets", "datasets")):
        if about.get(what) and argument not in arguments:
            names = ", ".join(map(str, about[what])) if isinstance(about[what], dict) else str(about[what])
            raise ValueError(f"restore needs {argument}, which the run had: {names}\n\nhint: {call}, {argument}=...)")
    return function


def _import_own_function(name: str) -> Any:
    """Return the function of this name; None if there is none, or if it is not the user's own.

    The name comes from a file, so nothing of an installed package or of Python is imported or called.
    """
    module_name, _, function_name = name.rpartition(".")
    package = module_name.partition(".")[0]
    if module_name not in sys.modules:
        found = importlib.util.find_spec(package) if package else None
        if found is None or found.origin is None or is_library_file(found.origin):
            return None
    try:
        function = getattr(importlib.import_module(module_name), function_name, None)
    except ImportError:
        return None
    is_own = isinstance(function, FunctionType) and not is_library_file(function.__code__.co_filename)
    return function if is_own else None


def _load_run(location: RunLocation) -> Run | None:
    run, _ = load_history(location.open_run_store_for_reading())
    return run if run.attempt or run.checkpoints else None
