"""Drive a run: open and lock its directory, run the controller, handle interrupts, report the outcome.

A run acts only through its `RunEnvironment` (engine, files, clock), so that tests can replace them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline._control.commands import StartWorkers
from paceline._control.controller import Controller, Observer
from paceline._control.events import DriverStarted, Retention
from paceline._control.hang_detector import HangDetector
from paceline._control.recovery import RecoveredRun, recover_run
from paceline._control.request_handler import RequestHandler
from paceline._control.request_inbox import RequestInbox
from paceline._control.run import Finished, Run
from paceline._control.usage_collector import UsageCollector
from paceline._control.validation_runner import ValidationRunner, ValidationSetup
from paceline._control.worker_sync import TaskQueue
from paceline._core import settings
from paceline._core.errors import ControllerError, PreemptionError, StorageError
from paceline._core.system import Clock, SystemClock
from paceline._engine.base import Engine, WorkerGroupSpec, WorkerResources, WorkerSpec
from paceline._engine.local.devices import DeviceShare
from paceline._engine.local.launchers import InlineLauncher
from paceline._engine.messages import CheckpointRecord, WorkerFailed, WorkerInit
from paceline._storage.files import Files, LocalFiles
from paceline._storage.lease import acquire_lease
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import RunStore
from paceline._view.formatting import format_count
from paceline._worker.main import Job
from paceline.train.backend import BackendConfig
from paceline.train.callbacks import TrainRunContext
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import CheckpointConfig, RunConfig, ScalingConfig
from paceline.train.display.terminal import Terminal
from paceline.train.driver import preflight
from paceline.train.driver.datasets import DataEndpoint, DatasetSpec
from paceline.train.driver.execution_target import ExecutionTarget
from paceline.train.driver.failures import (
    LoggerObserver,
    ResultCollector,
    make_observers,
    make_training_error,
    to_exception,
)
from paceline.train.driver.inline import run_inline
from paceline.train.driver.job import pickle_filesystem, pickle_job
from paceline.train.driver.run_metadata import collect_metadata_in_background, describe_config_changes
from paceline.train.driver.validation import ValidationConfig, ValidationFunction
from paceline.train.result import Result, build_result, finalize_metrics


@dataclass(frozen=True)
class RunEnvironment:
    """What a run acts through: engine, files, clock."""

    make_engine: Callable[[InlineLauncher | None], Engine] | None = None
    """None: the engine of the run's execution target."""
    wrap_engine: Callable[[Engine], Engine] = lambda engine: engine
    """Wraps the engine."""
    files: Files = field(default_factory=LocalFiles)
    clock: Clock = field(default_factory=SystemClock)
    observer_factories: tuple[Callable[[Callable[[], None]], Observer], ...] = ()
    """Make observers; each factory gets a function that asks the run to stop at the next report."""
    make_interrupts: Callable[[Controller], Interrupts] | None = None
    """Make the source of stop requests while the run is driven; None: signals to this process."""
    task_queue: TaskQueue | None = None
    """The tasks of persistent workers, which stay idle between tasks."""
    on_recovered: Callable[[RecoveredRun], None] | None = None
    """Called with the recovered run before it is driven."""
    controller_id: str = ""
    """For a driver that is restarted when it is lost: an id that stays the same across restarts."""


class Interrupts(Protocol):
    """A context manager that forwards stop requests to a controller."""

    count: int
    """1: stop at the next report; 2 or more: stop now."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
    def on_stop_request(self, *, now: bool) -> None:
        """Called in the controller's thread when a request to the run asks for a stop."""
        ...


@dataclass(frozen=True)
class RunSpec:
    """What a trainer was asked to run, checked and ready to drive."""

    job_parts: Job
    """The user's function, its config, and the backend around it."""
    pickled_job: bytes
    """The job, pickled."""
    run_config: RunConfig
    run_context: TrainRunContext
    scaling_config: ScalingConfig
    target: ExecutionTarget
    is_inline: bool
    """Run the function in this process, for a debugger."""
    initial_checkpoint: Checkpoint | None
    pickled_filesystem: bytes | None = None
    """The user's filesystem for the run, pickled."""
    validation: ValidationSpec | None = None
    datasets: DatasetSpec | None = None
    waits_in_reports: bool = False
    """Workers wait in `report()` until it is released: `Controller.release_report`."""
    pinned: tuple[int, ...] = ()
    """When a run is reopened: the numbers of its checkpoints that other runs start from."""
    purpose: str = ""
    """What the run is made for; a run made for another purpose is not resumed."""
    metadata: bytes = b""
    """The run's metadata, if it had to be collected before the run is driven: see `run_metadata`."""

    @property
    def needs(self) -> WorkerResources:
        return WorkerResources(self.scaling_config.num_cpus_per_worker, self.scaling_config.num_gpus_per_worker)


class DifferentRunError(StorageError):
    """The directory already contains a different run."""


@dataclass(frozen=True)
class ValidationSpec:
    config: ValidationConfig
    pickled_job: bytes
    """The function and its arguments, pickled."""
    share: DeviceShare


def execute_run(spec: RunSpec, terminal: Terminal, environment: RunEnvironment) -> Result:
    """Open the run, drive it, and report its outcome: the work of `fit()`, in whatever process."""
    location = spec.run_config.location
    with open_run(location, environment, terminal.say) as (recovered, store):
        if spec.purpose and recovered.run.attempt and recovered.run.purpose != spec.purpose:
            raise DifferentRunError(
                f"{store.uri} already contains a different run\n\n"
                "hint: use another RunConfig(name=...). In a trial, omit storage_path, or build the name from "
                "`tune.get_context().get_experiment_name()` and `get_trial_name()`: searches share trial numbers"
            )
        if environment.on_recovered is not None:
            environment.on_recovered(recovered)
        num_left = len(recovered.run.pending_validations) if spec.validation is not None else 0
        if recovered.run.is_trained and not num_left:
            terminal.say(f"run {location.name} is already complete; use another name to train again")
            _report_config_changes(terminal, spec, recovered)
            _catch_up_loggers(spec, store)
            return build_result(store, recovered.run, recovered.history, recovered.last_report)
        if num_left and recovered.run.is_trained:
            terminal.say(f"run {location.name} is trained; {format_count(num_left, 'validation')} left to do")
        else:
            # For a run in a store, only one checkpoint at a time is on this machine.
            num_here = spec.run_config.checkpoint_config.num_to_keep if location.address is None else 1
            if warning := preflight.check_space(location.layout, recovered.run, num_here):
                terminal.say(warning)
            _announce_start(terminal, store, recovered.run, spec.target)
            _report_config_changes(terminal, spec, recovered)
        with spec.target.serve_datasets(spec.datasets, terminal.say) as endpoint:
            return _drive_run(spec, store, recovered, terminal, environment, endpoint)


def _report_config_changes(terminal: Terminal, spec: RunSpec, recovered: RecoveredRun) -> None:
    if changed := describe_config_changes(spec, recovered.history):
        terminal.say(f"train_loop_config changed since the last run: {changed}")


def _catch_up_loggers(spec: RunSpec, store: RunStore) -> None:
    """Log the last reports: the driver that completed the run may have been lost before its loggers wrote them."""
    for observer in make_observers(spec.run_config.callbacks, spec.run_context, store, continues=True):
        if isinstance(observer, LoggerObserver):
            observer.catch_up()


def _announce_start(terminal: Terminal, store: RunStore, run: Run, target: ExecutionTarget) -> None:
    verb = "continues" if run.attempt else "begins"
    origin = f", from {run.latest.name}" if run.latest else ""
    terminal.say(f"run {store.layout.root.name} {verb}{origin}: {target.describe()}, in {store.uri}")


def _drive_run(
    spec: RunSpec,
    store: RunStore,
    recovered: RecoveredRun,
    terminal: Terminal,
    environment: RunEnvironment,
    endpoint: DataEndpoint,
) -> Result:
    """Drive the run to its end, and return its result or raise its error."""
    described = collect_metadata_in_background(spec, recovered.history)
    collector = ResultCollector(recovered.history, recovered.run, recovered.last_report)
    observers: list[Observer] = [collector, terminal]
    callbacks = make_observers(spec.run_config.callbacks, spec.run_context, store, continues=recovered.run.attempt > 0)
    observers += callbacks
    observers += [watcher(lambda: controller.request_stop(now=False)) for watcher in environment.observer_factories]
    inline = InlineLauncher() if spec.is_inline else None
    failures = spec.run_config.failure_config
    hang_detector = HangDetector(failures.hang_timeout_s, failures.hang_action, str(store.layout.root))
    engine = _make_engine(spec, environment, terminal, inline)
    validations = (
        _make_validation_runner(spec, spec.validation, store.layout, environment, terminal)
        if spec.validation is not None
        else None
    )
    controller = Controller(
        recovered.run,
        journal=recovered.journal,
        engine=engine,
        store=store,
        group=lambda command, run: _build_group(spec, store.layout, command, run, endpoint.address),
        clock=environment.clock,
        resources=spec.needs,
        # No hang detection for a person at a breakpoint.
        hang_detector=None if spec.is_inline else hang_detector,
        observers=observers,
        fence=recovered.fence,
        validations=validations,
        task_queue=environment.task_queue,
        usage_collector=UsageCollector(endpoint.read_stages),
        description=described,
        request_handler=RequestHandler(
            RequestInbox(*spec.run_config.location.open_mailboxes(), recovered.fence.number, environment.clock),
            store,
            environment.clock,
            stop=lambda now: interrupts.on_stop_request(now=now),
        ),
    )

    def drive() -> Run:
        with contextlib.closing(engine), contextlib.closing(validations) if validations else contextlib.nullcontext():
            return controller.drive(_make_driver_started(spec, engine, environment.clock, recovered.fence.number))

    interrupts = (environment.make_interrupts or SignalInterrupts)(controller)
    failed = True
    try:
        if inline is not None:
            run = run_inline(inline, drive, spec.job_parts, stop=lambda: controller.request_stop(now=True))
        else:
            with interrupts:
                run = drive()
        failed = isinstance(run.phase, Finished) and run.phase.ending == "failed"
    except OSError as problem:
        result = build_result(store, controller.run, recovered.history)
        result.metrics = collector.metrics
        raise ControllerError(problem, result) from problem
    finally:
        for callback in callbacks:
            callback.close(failed)
        terminal.close()
    return _conclude_run(store, run, collector, terminal, interrupts)


@contextlib.contextmanager
def open_run(
    location: RunLocation, environment: RunEnvironment, say: Callable[[str], None]
) -> Iterator[tuple[RecoveredRun, RunStore]]:
    """Open the run and hold its lease: yields the recovered run and its store, which has been checked for writing."""
    layout = location.layout
    with preflight.clean_up_on_refusal(layout), contextlib.ExitStack() as opening:
        create_run_directory(environment.files, layout)
        ttl_s = settings.load().lease_ttl_s
        lease = acquire_lease(
            location.open_lease_store(),
            ttl_s=ttl_s,
            clock=environment.clock,
            say=say,
            controller=environment.controller_id,
        )
        opening.enter_context(contextlib.closing(lease))
        lease.start_renewing()
        preflight.check_storage(environment.files, layout)
        store = location.open_run_store(environment.files, is_new=lease.number == 1)
        recovered = recover_run(store, environment.clock.wall(), lease, in_new_file=not lease.holder.alone)
        opening.enter_context(contextlib.closing(recovered.journal))
        resources = opening.pop_all()
    with resources:
        lease.mark_alone()
        try:
            yield recovered, store
        finally:
            if not lease.is_lost:  # Otherwise the staged files belong to the other driver.
                store.clear_staging(lease)
                store.close()


def create_run_directory(files: Files, layout: RunLayout) -> None:
    above = [path for path in layout.root.parents if not path.exists()]
    layout.root.parent.mkdir(parents=True, exist_ok=True)
    files.make_dir(layout.root)
    # Otherwise a power cut could lose one of the parent directories. The run store syncs the run's own name.
    for path in above:
        files.sync_dir(path.parent)


def _make_driver_started(spec: RunSpec, engine: Engine, clock: Clock, lease: int) -> DriverStarted:
    checkpoints, failures = spec.run_config.checkpoint_config, spec.run_config.failure_config
    sizes = spec.scaling_config.sizes
    return DriverStarted(
        size=sizes[-1],
        sizes=sizes,
        num_places=engine.capacity(spec.needs, sizes[0], sizes[-1]) if len(sizes) > 1 else None,
        resize_every_s=spec.scaling_config.elastic_resize_monitor_interval_s,
        max_failures=failures.max_failures,
        max_preemption_failures=failures.max_preemption_failures,
        controller_failure_limit=failures.controller_failure_limit,
        retention=to_retention(checkpoints),
        at=clock.wall(),
        pid=os.getpid(),
        host=socket.gethostname(),
        initial=spec.initial_checkpoint.path if spec.initial_checkpoint is not None else None,
        lease=lease,
        validates=spec.validation is not None,
        pinned=spec.pinned,
        purpose=spec.purpose,
    )


def to_retention(config: CheckpointConfig) -> Retention:
    return Retention(config.num_to_keep, config.checkpoint_score_attribute, config.checkpoint_score_order)


def _build_group(
    spec: RunSpec, layout: RunLayout, command: StartWorkers, run: Run, data_address: str
) -> WorkerGroupSpec:
    _, _, backend = spec.job_parts
    initial = spec.initial_checkpoint
    initial_filesystem = pickle_filesystem(initial.filesystem) if initial is not None and not initial.is_local else None
    workers = []
    for rank, share in enumerate(spec.target.compute_shares(command.size)):
        begin = WorkerInit(
            run_name=layout.root.name,
            run_path=str(layout.root),
            attempt=command.attempt,
            rank=rank,
            world_size=command.size,
            local_rank=rank,
            local_world_size=command.size,
            node_rank=0,
            first_seq=command.resume.seq if command.resume else 0,
            num_threads=share.num_threads,
            devices=share.devices,
            checkpoints=run.checkpoints,
            initial=run.initial,
            initial_filesystem=initial_filesystem,
            resume=command.resume,
            score_attribute=run.retention.score_attribute,
            score_order=run.retention.score_order,
            global_batch_size=spec.scaling_config.global_batch_size,
            max_failed_saves=spec.run_config.checkpoint_config.max_failed_saves,
            store=spec.run_config.location.address,
            filesystem=spec.pickled_filesystem,
            validates=run.validates,
            shards=spec.datasets.shards if spec.datasets is not None else (),
            data_address=data_address,
            waits_in_reports=spec.waits_in_reports,
            purpose=spec.purpose,
        )
        workers.append(WorkerSpec(begin, layout.log(command.attempt, rank), share.env))
    preload = backend.preload + (spec.target.preload if spec.datasets is not None else ())
    return WorkerGroupSpec(
        command.attempt, tuple(workers), spec.pickled_job, preload, backend.preload_later, backend.start_method
    )


def _make_engine(
    spec: RunSpec,
    environment: RunEnvironment,
    terminal: Terminal,
    inline: InlineLauncher | None = None,
    beside: WorkerResources | None = None,
) -> Engine:
    if environment.make_engine is not None:
        return environment.wrap_engine(environment.make_engine(inline))
    return environment.wrap_engine(spec.target.make_engine(inline, terminal.say, beside))


def _make_validation_runner(
    spec: RunSpec, validation: ValidationSpec, layout: RunLayout, environment: RunEnvironment, terminal: Terminal
) -> ValidationRunner:
    config, share = validation.config, validation.share
    _, _, backend = spec.job_parts

    def build_group(record: CheckpointRecord, number: int) -> WorkerGroupSpec:
        begin = WorkerInit(
            run_name=layout.root.name,
            run_path=str(layout.root),
            attempt=number,
            store=spec.run_config.location.address,
            filesystem=spec.pickled_filesystem,
            rank=0,
            world_size=1,
            local_rank=0,
            local_world_size=1,
            node_rank=0,
            first_seq=0,
            num_threads=share.num_threads,
            devices=share.devices,
        )
        worker = WorkerSpec(begin, layout.validation_log(record.name), share.env)
        kwargs = bytes(record.validation.kwargs) if record.validation is not None else b"{}"
        function = ValidationFunction(validation.pickled_job, (record.seq, record.name, record.attempt), kwargs)
        # Preload the training's framework but do not set it up: a validation is not part of the worker group.
        job = pickle_job(function, None, BackendConfig())
        return WorkerGroupSpec(number, (worker,), job, backend.preload, start_method=backend.start_method)

    def should_retry(failed: WorkerFailed) -> bool:
        raised = bool(failed.failure.traceback)
        return config.should_retry(to_exception(failed.failure, failed.pickled) if raised else None)

    def make_engine() -> Engine:
        return _make_engine(spec, environment, terminal, beside=WorkerResources(config.num_cpus, config.num_gpus))

    validator = ValidationSetup(make_engine, build_group, config.timeout_s, config.max_retries, should_retry)
    return ValidationRunner(validator, environment.clock)


def _is_default_handler(handler: object) -> bool:
    """Whether the script has not set a handler. `ray.init()` installs one that ends the process."""
    return handler is signal.SIG_DFL or getattr(handler, "__module__", None) == "ray._private.worker"


class Interruptible(Protocol):
    def request_stop(self, *, now: bool) -> None: ...
    def request_preemption(self, grace_s: float) -> None: ...


class SignalInterrupts:
    """Handles signals in the main thread while a run is driven.

    Ctrl-C once asks for a stop at the next report, twice for a stop now. SIGTERM and SIGUSR1 mean that the machine is
    about to be preempted, unless the script has its own handlers for them; a second SIGTERM means a stop now.
    """

    def __init__(self, controller: Interruptible) -> None:
        self.count = 0
        self._num_notices = 0
        self._controller = controller
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, self._handle_sigint)
            for signum in (signal.SIGTERM, signal.SIGUSR1):
                if _is_default_handler(signal.getsignal(signum)):
                    self._previous_handlers[signum] = signal.signal(signum, self._handle_preemption_signal)

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler)

    def on_stop_request(self, *, now: bool) -> None:
        self.count = max(self.count, 2 if now else 1)
        self._controller.request_stop(now=now)

    def _handle_sigint(self, *_: object) -> None:
        self.count += 1
        self._controller.request_stop(now=self.count > 1)

    def _handle_preemption_signal(self, signum: int, _: object) -> None:
        self._num_notices += signum == signal.SIGTERM
        if self._num_notices > 1:
            self._controller.request_stop(now=True)
        else:
            self._controller.request_preemption(settings.load().preemption_grace_s)


def _conclude_run(
    store: RunStore, run: Run, collector: ResultCollector, terminal: Terminal, interrupts: Interrupts
) -> Result:
    assert isinstance(run.phase, Finished)
    layout = store.layout
    result = build_result(store, run, ())
    result.metrics = finalize_metrics(collector.metrics, run)
    result.return_value = collector.return_value
    if run.phase.ending == "failed":
        error = make_training_error(store, run, collector.failures, result)
        result.error = error
        raise error
    if interrupts.count > 1:
        raise KeyboardInterrupt
    if run.phase.ending == "preempted" or (run.preempted and run.pending_validations):
        result.error = PreemptionError(_format_preemption(layout, run), result)
        terminal.say(str(result.error), error=True)
        raise result.error
    if run.pending_validations and run.is_trained:
        validations = format_count(len(run.pending_validations), "validation")
        terminal.say(f"training is complete; run the script again with the same name for the remaining {validations}")
    elif run.phase.ending == "interrupted":
        terminal.say(f"stopped after report {run.num_reports}; run the script again with the same name to continue")
    else:
        terminal.say(f"run {layout.root.name} is complete after {format_count(run.num_reports, 'report')}")
    return result


def _format_preemption(layout: RunLayout, run: Run) -> str:
    lost = run.num_reports - (run.latest.seq if run.latest is not None else 0)
    since = f"{run.latest.name} (report {run.latest.seq})" if run.latest is not None else "the beginning"
    behind = f"; {format_count(lost, 'report')} after it will be repeated" if lost else ""
    return (
        f"run {layout.root.name} was preempted after {format_count(run.num_reports, 'report')}\n\n"
        "hint: run the script again with the same RunConfig(storage_path=..., name=...) "
        f"to continue from {since}{behind}"
    )
