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
from paceline._control.task_queue import TaskQueue
from paceline._control.usage_collector import UsageCollector
from paceline._control.validation_runner import ValidationRunner, ValidationSetup
from paceline._core import settings
from paceline._core.clock import Clock, SystemClock
from paceline._core.errors import ControllerError, PreemptionError, StorageError
from paceline._engine.base import Engine, WorkerGroupSpec, WorkerResources, WorkerSpec
from paceline._engine.local.devices import DeviceShare
from paceline._engine.local.inline import InlineLauncher
from paceline._engine.messages import CheckpointRecord, WorkerFailed, WorkerInit
from paceline._storage.files import Files, LocalFiles
from paceline._storage.lease import acquire_lease as lease_taken
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import RunStore
from paceline._view.formatting import format_count
from paceline._worker.main import Job
from paceline.train import preflight
from paceline.train.backend import BackendConfig
from paceline.train.callbacks import TrainRunContext
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import CheckpointConfig, RunConfig, ScalingConfig
from paceline.train.datasets import DataEndpoint, DatasetSpec
from paceline.train.execution_target import ExecutionTarget
from paceline.train.failures import LoggerObserver, ResultCollector, make_observers, make_training_error, to_exception
from paceline.train.inline import run_inline
from paceline.train.job import pickle_filesystem, pickle_job
from paceline.train.result import Result, build_result, finalize_metrics
from paceline.train.run_metadata import collect_metadata_in_background, describe_config_changes
from paceline.train.terminal import Terminal
from paceline.train.validation import ValidationConfig, ValidationFunction


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


def execute_run(asked: RunSpec, terminal: Terminal, seams: RunEnvironment) -> Result:
    """Open the run, drive it, and report its outcome: the work of `fit()`, in whatever process."""
    home = asked.run_config.home
    with open_run(home, seams, terminal.say) as (found, depot):
        if asked.purpose and found.run.attempt and found.run.purpose != asked.purpose:
            raise DifferentRunError(
                f"{depot.uri} holds a run that was made for something else: its reports are not this one's\n\n"
                "hint: give the run another RunConfig(name=...). In a trial, leave out storage_path, or let the name "
                "have the search's and the trial's in it: `tune.get_context().get_experiment_name()` and "
                "`get_trial_name()`, since numbers of trials come again in other searches"
            )
        if seams.on_recovered is not None:
            seams.on_recovered(found)
        left = len(found.run.pending_validations) if asked.validation is not None else 0
        if found.run.is_trained and left:
            terminal.say(f"run {home.name} is trained; {format_count(left, 'validation')} left to be made")
            return drive_run(asked, depot, found, terminal, seams)
        if found.run.is_trained:
            terminal.say(f"run {home.name} is already complete: nothing is run. Give it another name to train again")
            _report_config_changes(terminal, asked, found)
            _catch_up_loggers(asked, depot)
            return build_result(depot, found.run, found.history, found.last_report)
        # For a run in a store, only one checkpoint at a time is on this machine.
        num_here = asked.run_config.checkpoint_config.num_to_keep if home.address is None else 1
        if tight := preflight.check_space(home.layout, found.run, num_here):
            terminal.say(tight)
        _announce_start(terminal, depot, found.run, asked.target)
        _report_config_changes(terminal, asked, found)
        return drive_run(asked, depot, found, terminal, seams)


def _report_config_changes(terminal: Terminal, asked: RunSpec, found: RecoveredRun) -> None:
    if changed := describe_config_changes(asked, found.history):
        terminal.say(f"the train_loop_config is another one than before: {changed}")


def _catch_up_loggers(asked: RunSpec, depot: RunStore) -> None:
    """Log the last reports: the driver that completed the run may have been lost before its loggers wrote them."""
    for observer in make_observers(asked.run_config.callbacks, asked.run_context, depot, continues=True):
        if isinstance(observer, LoggerObserver):
            observer.catch_up()


def _announce_start(terminal: Terminal, depot: RunStore, run: Run, site: ExecutionTarget) -> None:
    begins = "continues" if run.attempt else "begins"
    where = f", from {run.latest.name}" if run.latest else ""
    terminal.say(f"run {depot.layout.root.name} {begins}{where}: {site.describe()}, in {depot.uri}")


def drive_run(
    asked: RunSpec, depot: RunStore, found: RecoveredRun, terminal: Terminal, seams: RunEnvironment
) -> Result:
    """Drive the run to its end, and return its result or raise its error."""
    with asked.target.serve_datasets(asked.datasets, terminal.say) as served:
        return _drive_with_endpoint(asked, depot, found, terminal, seams, served)


def _drive_with_endpoint(
    asked: RunSpec,
    depot: RunStore,
    found: RecoveredRun,
    terminal: Terminal,
    seams: RunEnvironment,
    served: DataEndpoint,
) -> Result:
    described = collect_metadata_in_background(asked, found.history)
    collector = ResultCollector(found.history, found.run, found.last_report)
    observers: list[Observer] = [collector, terminal]
    callbacks = make_observers(asked.run_config.callbacks, asked.run_context, depot, continues=found.run.attempt > 0)
    observers += callbacks
    observers += [watcher(lambda: controller.request_stop(now=False)) for watcher in seams.observer_factories]
    inline = InlineLauncher() if asked.is_inline else None
    engine = _make_engine(asked, seams, terminal, inline)
    validations = (
        _make_validation_runner(asked, asked.validation, depot.layout, seams, terminal)
        if asked.validation is not None
        else None
    )
    controller = Controller(
        found.run,
        journal=found.journal,
        engine=engine,
        depot=depot,
        group=lambda command, run: _build_group(asked, depot.layout, command, run, served.address),
        clock=seams.clock,
        needs=asked.needs,
        # No hang detection for a person at a breakpoint.
        watch=None if asked.is_inline else _make_hang_detector(asked, depot.layout),
        observers=observers,
        fence=found.fence,
        validations=validations,
        orders=seams.task_queue,
        vitals=UsageCollector(served.read_stages),
        described=described,
        clerk=RequestHandler(
            RequestInbox(*asked.run_config.home.open_mailboxes(), found.fence.number, seams.clock),
            depot,
            seams.clock,
            stop=lambda now: interrupts.on_stop_request(now=now),
        ),
    )

    def drive() -> Run:
        with contextlib.closing(engine), contextlib.closing(validations) if validations else contextlib.nullcontext():
            return controller.drive(_make_driver_started(asked, engine, seams.clock, found.fence.number))

    interrupts = (seams.make_interrupts or SignalInterrupts)(controller)
    failed = True
    try:
        if inline is not None:
            run = run_inline(inline, drive, asked.job_parts, stop=lambda: controller.request_stop(now=True))
        else:
            with interrupts:
                run = drive()
        failed = isinstance(run.phase, Finished) and run.phase.ending == "failed"
    except OSError as problem:
        result = build_result(depot, controller.run, found.history)
        result.metrics = collector.metrics
        raise ControllerError(problem, result) from problem
    finally:
        for callback in callbacks:
            callback.close(failed)
        terminal.close()
    return _conclude_run(depot, run, collector, terminal, interrupts)


def _probe_capacity(asked: RunSpec, engine: Engine) -> int | None:
    sizes = asked.scaling_config.sizes
    return engine.capacity(asked.needs, sizes[0], sizes[-1]) if len(sizes) > 1 else None


@contextlib.contextmanager
def open_run(
    home: RunLocation, seams: RunEnvironment, say: Callable[[str], None]
) -> Iterator[tuple[RecoveredRun, RunStore]]:
    """Open the run and hold its lease: yields the recovered run and its store, which has been checked for writing."""
    layout = home.layout
    with preflight.clean_up_on_refusal(layout), contextlib.ExitStack() as opening:
        create_run_directory(seams.files, layout)
        ttl_s = settings.load().lease_ttl_s
        lease = lease_taken(
            home.open_lease_store(), ttl_s=ttl_s, clock=seams.clock, say=say, controller=seams.controller_id
        )
        opening.enter_context(contextlib.closing(lease))
        lease.start_renewing()
        preflight.check_storage(seams.files, layout)
        depot = home.open_run_store(seams.files, is_new=lease.number == 1)
        found = recover_run(depot, seams.clock.wall(), lease, apart=not lease.holder.alone)
        opening.enter_context(contextlib.closing(found.journal))
        held = opening.pop_all()
    with held:
        lease.mark_alone()
        try:
            yield found, depot
        finally:
            if not lease.is_lost:  # Otherwise the staged files belong to the other driver.
                depot.clear_staging(lease)
                depot.close()


def create_run_directory(files: Files, layout: RunLayout) -> None:
    above = [path for path in layout.root.parents if not path.exists()]
    layout.root.parent.mkdir(parents=True, exist_ok=True)
    files.make_dir(layout.root)
    # Otherwise a power cut could lose one of the parent directories. The run store syncs the run's own name.
    for path in above:
        files.sync_dir(path.parent)


def _make_driver_started(asked: RunSpec, engine: Engine, clock: Clock, lease: int) -> DriverStarted:
    checkpoints, failures = asked.run_config.checkpoint_config, asked.run_config.failure_config
    return DriverStarted(
        size=asked.scaling_config.sizes[-1],
        sizes=asked.scaling_config.sizes,
        num_places=_probe_capacity(asked, engine),
        resize_every_s=asked.scaling_config.elastic_resize_monitor_interval_s,
        max_failures=failures.max_failures,
        max_preemption_failures=failures.max_preemption_failures,
        controller_failure_limit=failures.controller_failure_limit,
        retention=to_retention(checkpoints),
        at=clock.wall(),
        pid=os.getpid(),
        host=socket.gethostname(),
        initial=asked.initial_checkpoint.path if asked.initial_checkpoint is not None else None,
        lease=lease,
        validates=asked.validation is not None,
        pinned=asked.pinned,
        purpose=asked.purpose,
    )


def to_retention(config: CheckpointConfig) -> Retention:
    return Retention(config.num_to_keep, config.checkpoint_score_attribute, config.checkpoint_score_order)


def _make_hang_detector(asked: RunSpec, layout: RunLayout) -> HangDetector:
    config = asked.run_config.failure_config
    return HangDetector(config.hang_timeout_s, config.hang_action, str(layout.root))


def _build_group(
    asked: RunSpec, layout: RunLayout, command: StartWorkers, run: Run, data_address: str
) -> WorkerGroupSpec:
    _, _, backend = asked.job_parts
    initial_filesystem = _pickle_initial_filesystem(asked.initial_checkpoint)
    workers = []
    for rank, share in enumerate(asked.target.compute_shares(command.size)):
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
            global_batch_size=asked.scaling_config.global_batch_size,
            max_failed_saves=asked.run_config.checkpoint_config.max_failed_saves,
            store=asked.run_config.home.address,
            filesystem=asked.pickled_filesystem,
            validates=run.validates,
            shards=asked.datasets.shards if asked.datasets is not None else (),
            data_address=data_address,
            waits_in_reports=asked.waits_in_reports,
            purpose=asked.purpose,
        )
        workers.append(WorkerSpec(begin, layout.log(command.attempt, rank), share.env))
    preload = backend.preload + (asked.target.preload if asked.datasets is not None else ())
    return WorkerGroupSpec(
        command.attempt, tuple(workers), asked.pickled_job, preload, backend.preload_later, backend.start_method
    )


def _pickle_initial_filesystem(initial: Checkpoint | None) -> bytes | None:
    return pickle_filesystem(initial.filesystem) if initial is not None and not initial.is_local else None


def _make_engine(
    asked: RunSpec,
    seams: RunEnvironment,
    terminal: Terminal,
    inline: InlineLauncher | None = None,
    beside: WorkerResources | None = None,
) -> Engine:
    if seams.make_engine is not None:
        return seams.wrap_engine(seams.make_engine(inline))
    return seams.wrap_engine(asked.target.make_engine(inline, terminal.say, beside))


def _make_validation_runner(
    asked: RunSpec, validation: ValidationSpec, layout: RunLayout, seams: RunEnvironment, terminal: Terminal
) -> ValidationRunner:
    config, given = validation.config, validation.share
    _, _, backend = asked.job_parts

    def build_group(record: CheckpointRecord, number: int) -> WorkerGroupSpec:
        begin = WorkerInit(
            run_name=layout.root.name,
            run_path=str(layout.root),
            attempt=number,
            store=asked.run_config.home.address,
            filesystem=asked.pickled_filesystem,
            rank=0,
            world_size=1,
            local_rank=0,
            local_world_size=1,
            node_rank=0,
            first_seq=0,
            num_threads=given.num_threads,
            devices=given.devices,
        )
        spec = WorkerSpec(begin, layout.validation_log(record.name), given.env)
        kwargs = bytes(record.validation.kwargs) if record.validation is not None else b"{}"
        function = ValidationFunction(validation.pickled_job, (record.seq, record.name, record.attempt), kwargs)
        # Preload the training's framework but do not set it up: a validation is not part of the worker group.
        job = pickle_job(function, None, BackendConfig())
        return WorkerGroupSpec(number, (spec,), job, backend.preload, start_method=backend.start_method)

    def should_retry(failed: WorkerFailed) -> bool:
        raised = bool(failed.failure.traceback)
        return config.should_retry(to_exception(failed.failure, failed.pickled) if raised else None)

    def make_engine() -> Engine:
        return _make_engine(asked, seams, terminal, beside=WorkerResources(config.num_cpus, config.num_gpus))

    validator = ValidationSetup(make_engine, build_group, config.timeout_s, config.max_retries, should_retry)
    return ValidationRunner(validator, seams.clock)


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
    depot: RunStore, run: Run, collector: ResultCollector, terminal: Terminal, interrupts: Interrupts
) -> Result:
    assert isinstance(run.phase, Finished)
    layout = depot.layout
    result = build_result(depot, run, ())
    result.metrics = finalize_metrics(collector.metrics, run)
    result.return_value = collector.return_value
    if run.phase.ending == "failed":
        error = make_training_error(depot, run, collector.failures, result)
        result.error = error
        raise error
    if interrupts.count > 1:
        raise KeyboardInterrupt
    if run.phase.ending == "preempted" or (run.preempted and run.pending_validations):
        result.error = PreemptionError(_format_preemption(layout, run), result)
        terminal.say(str(result.error), error=True)
        raise result.error
    if run.pending_validations and run.is_trained:
        left = format_count(len(run.pending_validations), "validation")
        terminal.say(f"training is complete, but {left} not; run the script again with the same name for the rest")
    elif run.phase.ending == "interrupted":
        terminal.say(f"stopped after report {run.num_reports}; run the script again with the same name to continue")
    else:
        terminal.say(f"run {layout.root.name} is complete after {format_count(run.num_reports, 'report')}")
    return result


def _format_preemption(layout: RunLayout, run: Run) -> str:
    lost = run.num_reports - (run.latest.seq if run.latest is not None else 0)
    since = f"{run.latest.name} (report {run.latest.seq})" if run.latest is not None else "the beginning"
    behind = f"; {format_count(lost, 'report')} after it will be made again" if lost else ""
    return (
        f"run {layout.root.name} was preempted after {format_count(run.num_reports, 'report')}\n\n"
        "hint: run the script again with the same RunConfig(storage_path=..., name=...) "
        f"to continue from {since}{behind}"
    )
