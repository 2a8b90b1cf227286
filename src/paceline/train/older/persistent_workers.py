"""A run whose workers persist between tasks, driven in a thread of its own.

The script's thread submits tasks and waits for answers; signals are handled only while it waits, in the main thread.
`TrainingIterator` yields the reports of a task, and `RunCallbacks` calls the callbacks of one `run()`.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Self, cast

import cloudpickle

from paceline._control.controller import Controller
from paceline._control.events import Event, Reported, Retention, RetentionSet
from paceline._control.report_aggregator import own_metrics
from paceline._control.run import Run, Running
from paceline._control.worker_sync import TaskQueue
from paceline._core import settings
from paceline._core.errors import TrainingInterrupt
from paceline._core.frames import find_caller
from paceline._engine.local.launchers import prewarm
from paceline._engine.messages import TaskAnswered
from paceline._storage.run_layout import SAVED_PREFIX
from paceline._storage.run_store import RunStore
from paceline.train.callbacks import Callback, TrainRunContext
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import CheckpointConfig, coerce_config
from paceline.train.display.terminal import Terminal
from paceline.train.driver.callback_thread import CallbackThread
from paceline.train.driver.datasets import build_dataset_spec
from paceline.train.driver.execution_target import choose_target
from paceline.train.driver.failures import format_interrupt, make_observers
from paceline.train.driver.interrupts import SignalInterrupts
from paceline.train.driver.job import pickle_job, resolve_loop_config
from paceline.train.driver.run_session import execute_run
from paceline.train.driver.run_spec import RunEnvironment, RunHooks, RunSpec
from paceline.train.driver.trainer_arguments import TrainerArguments, build_run_spec, resolve_fork
from paceline.train.driver.worker_setup import to_retention
from paceline.train.older.task_loop import WorkerTask, run_task_loop
from paceline.train.result import Result

log = logging.getLogger("paceline")

CheckpointStrategy = CheckpointConfig | Mapping[str, Any] | None
"""Which checkpoints of a task are kept; None: as the trainer's `RunConfig` says."""

PreparedTask = tuple["PersistentWorkers", bytes]
"""The workers, started, and the job for them."""

DEFAULT_NAMES = ("train_loop_per_worker", "train_func")

_SHUTDOWN_TIMEOUT_S = 30.0
"""How long workers may take to shut their framework down before they are killed."""


def start_workers(arguments: TrainerArguments) -> PersistentWorkers:
    if arguments.scaling_config.num_workers == 0:
        raise ValueError("persistent workers need num_workers of at least 1: use fit(), or num_workers=1")
    if arguments.run_config.detached:
        raise ValueError("RunConfig(detached=True) needs fit(): persistent workers belong to this script")
    if arguments.run_config.if_exists in ("new", "fail"):
        raise ValueError(
            f"RunConfig(if_exists={arguments.run_config.if_exists!r}) needs fit(): a trainer that is started again "
            "resumes in its directory"
        )
    arguments = resolve_fork(arguments)
    target = choose_target(arguments.scaling_config, arguments.run_config)
    target.check()
    backend = arguments.backend_config
    spec = replace(build_run_spec(arguments, target, (run_task_loop, None, backend)), datasets=None)
    if backend.start_method == "fork":
        prewarm(*backend.preload)
    chosen, layout = settings.load(), arguments.run_config.location.layout
    terminal = PersistentWorkersTerminal(layout, chosen.verbosity, chosen.report_notice_s)
    return PersistentWorkers(spec, terminal, arguments.environment)


@contextlib.contextmanager
def prepare_task(
    arguments: TrainerArguments,
    start: Callable[[], PersistentWorkers],
    function: Callable[..., Any],
    config: Mapping[str, Any] | None,
    dataset: Any,
    checkpoint: Checkpoint | None,
) -> Iterator[PreparedTask]:
    """Check what is to run, start the workers, build the job of the task, and serve its datasets while it runs."""
    call_config = _resolve_call_config(function, config if config is not None else arguments.train_loop_config)
    datasets = arguments.datasets if dataset is None else dataset
    if datasets is not None and not isinstance(datasets, Mapping):
        datasets = {"train": datasets}
    data = build_dataset_spec(datasets, arguments.dataset_config)
    if data is not None and data.divider is not None:
        raise ValueError(
            f"{type(data.divider).__name__}.configure() is not called for persistent workers\n\n"
            "hint: use fit() of a DataParallelTrainer"
        )
    workers = start()
    run = workers.run
    assert run is not None
    ignores_earlier = workers.num_tasks > 0 or checkpoint is not None
    target = choose_target(arguments.scaling_config, arguments.run_config)
    # The trainer's terminal already shows the messages of the data service.
    with target.serve_datasets(data, lambda _: None) as endpoint:
        task = WorkerTask(
            function=function,
            config=call_config,
            checkpoint=checkpoint,
            checkpoints_after=(run.latest.seq if run.latest is not None else 0) if ignores_earlier else -1,
            num_earlier_reports=workers.num_reports,
            shards=data.shards if data is not None else (),
            data_address=endpoint.address,
        )
        pickle_job(function, call_config, arguments.backend_config)  # Raises an error that names what does not pickle.
        yield workers, cloudpickle.dumps(task)


def _resolve_call_config(function: Any, config: Mapping[str, Any] | None) -> Any:
    """Return the function's config. A function without parameters is called without, as in Ray 1.x."""
    with contextlib.suppress(TypeError, ValueError):
        if not inspect.signature(function).parameters:
            config = None
    return resolve_loop_config(function, dict(config) if isinstance(config, Mapping) else config)


class PersistentWorkers:
    """The workers of one run, from `start()` to `shutdown()`. Also an observer of that run."""

    def __init__(self, spec: RunSpec, terminal: PersistentWorkersTerminal, environment: RunEnvironment) -> None:
        self.count = 0
        self.has_ctrl_c = False
        self.run: Run | None = None
        self.num_reports = 0
        """The number of reports of the rank that has made the most."""
        self.num_tasks = 0
        self._terminal = terminal
        self._task_queue = TaskQueue()
        self._controller: Controller | None = None
        self._changed = threading.Condition()  # protects all below
        self._answers: tuple[TaskAnswered, ...] | None = None
        self._is_busy = False
        self._is_waited_for = False
        self._outcome: Result | BaseException | None = None
        self._is_outcome_reported = False
        self._attempt = 0
        self._reports: dict[int, dict[int, Reported]] = {}
        self._rows: deque[tuple[Reported, ...]] | None = None
        self._callbacks: RunCallbacks | None = None
        hooks = RunHooks(
            observer_factories=(lambda stop: self,),
            make_interrupts=self._attach_controller,
            task_queue=self._task_queue,
        )
        self._thread = threading.Thread(
            target=self._drive, args=(spec, environment, hooks), name="paceline-standing-workers", daemon=True
        )
        self._thread.start()
        # Registered after the engine's exit handler, so it runs before it: workers shut down in good order.
        atexit.register(self.close)

    @property
    def is_alive(self) -> bool:
        return self._outcome is None

    def wait_until_ready(self) -> None:
        """Wait until the workers are ready, or raise the error that prevented it."""
        with self._forward_signals(), self._changed:
            self._changed.wait_for(lambda: self._is_ready() or self._outcome is not None)
        self._raise_outcome()

    def run_task(
        self, job: bytes, strategy: CheckpointStrategy = None, callbacks: RunCallbacks | None = None
    ) -> list[Any]:
        """Run a task and return what each rank's function returned."""
        assert self.run is not None
        with callbacks.observe_run(self.run) if callbacks is not None else contextlib.nullcontext():
            self._callbacks = callbacks
            try:
                for _ in self.iterate_task(job, strategy, rows=False):
                    pass
            finally:
                self._callbacks = None
        return self.return_values()

    def iterate_task(
        self, job: bytes, strategy: CheckpointStrategy = None, *, rows: bool = True
    ) -> Iterator[list[Reported]]:
        """Run a task and yield its reports, each once all ranks have made it."""
        retention: Retention | None = None
        if strategy is not None:
            retention = to_retention(coerce_config(CheckpointConfig, strategy, "checkpoint_strategy"))
        with self._changed:
            if self._is_waited_for:
                raise RuntimeError("a run is in progress: wait for it, or iterate to its end, before the next")
            self._answers = None
            self._rows = deque() if rows else None
            self._reports.clear()
        self._raise_outcome()
        assert self._controller is not None
        self._is_busy = self._is_waited_for = True
        self.num_tasks += 1
        try:
            with self._forward_signals():
                self._submit_task(job, retention)
                while (row := self._next_row()) is not None:
                    yield list(row)
            self._raise_outcome()
        finally:
            self._rows = None
            self._is_waited_for = False
            self._is_busy = self._answers is None

    def _submit_task(self, job: bytes, retention: Retention | None = None) -> None:
        assert self._controller is not None
        if retention is not None:
            self._controller.set_retention(retention)
        self._task_queue.submit(job)
        self._controller.engine.wake()

    def return_values(self) -> list[Any]:
        """What the functions of the last task returned, by rank."""
        answers = self._answers
        assert answers is not None
        return [pickle.loads(each.value) for each in answers]  # noqa: S301

    def raise_unreported(self) -> None:
        """Raise the error that ended the workers between two runs, or at their end, unless it was raised already."""
        if self._outcome is None:
            return
        self._thread.join()
        atexit.unregister(self.close)
        was_told, self._is_outcome_reported = self._is_outcome_reported, True
        if isinstance(self._outcome, TrainingInterrupt) and not was_told:
            raise self._outcome.for_caller()
        if isinstance(self._outcome, BaseException) and not was_told:
            raise self._outcome

    def close(self) -> None:
        """Shut the workers down and wait until they are gone. Workers that still run a task are stopped."""
        atexit.unregister(self.close)
        self._terminal.is_ending = True
        with self._changed:
            self._changed.wait_for(lambda: self._controller is not None or self._outcome is not None)
            at_rest = self._is_ready() and not self._is_busy
        if self.is_alive and self._controller is not None:
            if at_rest:
                self._submit_task(b"")
            else:
                self._controller.request_stop(now=True)
        if threading.current_thread() is self._thread:
            return  # The garbage collector may call this in any thread; this one now ends by itself.
        self._thread.join(_SHUTDOWN_TIMEOUT_S)
        if self._thread.is_alive() and self._controller is not None:
            self._controller.request_stop(now=True)
        self._thread.join()

    # These run in the driving thread.

    def on_event(self, event: Event, run: Run) -> None:
        with self._changed:
            self.run = run
            if run.attempt != self._attempt:
                self._attempt = run.attempt
                self._reports.clear()
            if isinstance(event, Reported):
                self.num_reports = max(self.num_reports, event.seq)
                if self._rows is not None:
                    self._add_report(event, run.size)
            self._changed.notify_all()
        if (callbacks := self._callbacks) is not None:
            callbacks.on_event(event, run)

    def tick(self, run: Run, now: float) -> None:
        # Answers here, not when the last rank answers: by now the terminal has shown the output before the answer.
        if (callbacks := self._callbacks) is not None:
            callbacks.tick(run, now)
        answers = self._task_queue.take_answers(run)
        if answers is not None:
            with self._changed:
                self._answers = answers
                self.num_reports = max(self.num_reports, *(each.num_reports for each in answers))
                self._changed.notify_all()

    def _add_report(self, event: Reported, size: int) -> None:
        by_rank = self._reports.setdefault(event.seq, {})
        by_rank[event.rank] = event
        if len(by_rank) == size:
            assert self._rows is not None
            self._rows.append(tuple(by_rank[rank] for rank in range(size)))
            del self._reports[event.seq]

    def _drive(self, spec: RunSpec, environment: RunEnvironment, hooks: RunHooks) -> None:
        outcome: Result | BaseException
        try:
            outcome = execute_run(spec, self._terminal, environment, hooks)
        except BaseException as error:  # noqa: BLE001
            outcome = error
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()

    def _attach_controller(self, controller: Controller) -> PersistentWorkers:
        """Called by the driving thread with its controller: this object replaces the signal handlers."""
        with self._changed:
            self._controller = controller
            self._changed.notify_all()
        return self

    def __enter__(self) -> None:
        """Do nothing: the driving thread handles no signals."""

    def __exit__(self, *_: object) -> None:
        """Do nothing: see `__enter__`."""

    def on_stop_request(self, *, now: bool) -> None:
        assert self._controller is not None
        self.count = max(self.count, 2 if now else 1)
        self._controller.request_stop(now=now)

    # These run in the caller's thread.

    @contextlib.contextmanager
    def _forward_signals(self) -> Iterator[None]:
        """Forward Ctrl-C and preemption notices while the caller waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._controller is not None or self._outcome is not None)
        if self._controller is None:
            yield
            return
        signals = SignalInterrupts(self._controller)
        try:
            with signals:
                yield
        finally:
            self.count = max(self.count, signals.count)
            self.has_ctrl_c |= signals.has_ctrl_c

    def _is_ready(self) -> bool:
        run = self.run
        return run is not None and isinstance(run.phase, Running) and run.phase.num_ready >= run.size

    def _next_row(self) -> tuple[Reported, ...] | None:
        """Return the next report of all ranks; None once all ranks have answered or the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._answers is not None or self._outcome is not None)
            return self._rows.popleft() if self._rows else None

    def _raise_outcome(self) -> None:
        if self._outcome is None or self._answers is not None:
            return
        self.raise_unreported()
        if self.count and isinstance(self._outcome, Result):
            assert self._outcome._run_store is not None
            assert self.run is not None
            text = format_interrupt(self._outcome._run_store, self.run, self._outcome.status)
            raise TrainingInterrupt(text, self._outcome).for_caller()
        if not self.num_tasks:
            raise RuntimeError(
                "cannot start workers: the run of this trainer is complete\n\n"
                "hint: use another RunConfig(name=...) or a new trainer"
            )
        raise RuntimeError("the workers ended while they ran a function\n\nhint: call start() again")


class PersistentWorkersTerminal(Terminal):
    """Omits how to continue a run that the script itself has ended."""

    is_ending = False

    def say(self, text: str, *, error: bool = False) -> None:
        if error or not self.is_ending:
            super().say(text, error=error)


class TrainingIterator:
    """Yields one list of dicts, by rank, for each report that all ranks have made."""

    def __init__(self, task: AbstractContextManager[PreparedTask], strategy: CheckpointStrategy = None) -> None:
        self._rows = self._iterate_reports(task, strategy)
        self._results: list[Any] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[dict[str, Any]]:
        return next(self._rows)

    def _iterate_reports(
        self, task: AbstractContextManager[PreparedTask], strategy: CheckpointStrategy
    ) -> Iterator[list[dict[str, Any]]]:
        with task as (workers, job):
            for row in workers.iterate_task(job, strategy):
                if not (row[0].checkpoint or "").startswith(SAVED_PREFIX):
                    yield [own_metrics(each) for each in row]
            self._results = workers.return_values()

    def is_finished(self) -> bool:
        return self._results is not None

    def get_final_results(self, force: bool = False) -> list[Any]:
        """Return what each rank's function returned; with `force`, skip the reports that are left."""
        if force:
            for _ in self:
                pass
        if self._results is None:
            raise RuntimeError("the function is still running: iterate to the end, or get_final_results(force=True)")
        return self._results


class RunCallbacks:
    """Calls the callbacks of one `run()`, on a thread of their own."""

    def __init__(self, callbacks: list[Callback], run_context: TrainRunContext, store: RunStore) -> None:
        # They start in the middle of a run: its journal has the earlier reports.
        observers = make_observers(callbacks, run_context, store, continues=True)
        self._thread = CallbackThread(observers, settings.load().callback_timeout_s)

    @contextlib.contextmanager
    def observe_run(self, run: Run) -> Iterator[None]:
        # This event has no effect, but the observers start with the first event they receive.
        self.on_event(RetentionSet(run.attempt, run.retention), run)
        failed = True
        try:
            yield
            failed = False
        finally:
            self._thread.close(failed)

    def on_event(self, event: Event, run: Run) -> None:
        self._thread.on_event(event, run)

    def tick(self, run: Run, now: float) -> None:
        self._thread.tick(run, now)


def find_function(fn: Callable[..., Any] | str | None, default: Any) -> Callable[..., Any]:
    """Return the function to run: `fn`, the trainer's own, or the caller's by name."""
    chosen = fn if fn is not None else default
    if chosen is not None and not isinstance(chosen, str):
        return cast(Callable[..., Any], chosen)
    names = DEFAULT_NAMES if chosen is None else (chosen,)
    frame, _ = find_caller()
    for name in names:
        value = frame.f_locals.get(name, frame.f_globals.get(name))
        if callable(value):
            return cast(Callable[..., Any], value)
    raise ValueError(
        f"no function to run: pass run(train_func) or Trainer(train_loop_per_worker=...), or define "
        f"{' or '.join(names)} in {frame.f_globals.get('__name__')}"
    )
