"""A run on its way: its directory opened and held, the controller driven, interrupts heard, its end told.

What a run acts through (engine, files, clock) is a value, `Seams`, so that tests can give others.
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

from paceline._control.clerk import Clerk
from paceline._control.commands import StartWorkers
from paceline._control.controller import Controller, Observer
from paceline._control.events import DriverStarted, Retention
from paceline._control.hangs import Watch
from paceline._control.orders import Orders
from paceline._control.reception import Reception
from paceline._control.recover import Recovered, recovered
from paceline._control.run import Finished, Run
from paceline._control.validations import Validations, Validator
from paceline._control.vitals import Vitals
from paceline._core import settings
from paceline._core.clock import Clock, SystemClock
from paceline._core.errors import ControllerError, PreemptionError, StorageError
from paceline._engine.base import Engine, Group, Needs, WorkerSpec
from paceline._engine.local.devices import Share
from paceline._engine.local.inline import InlineLauncher
from paceline._engine.messages import Begin, CheckpointRecord, WorkerFailed
from paceline._storage.depot import Depot
from paceline._storage.files import Files, LocalFiles
from paceline._storage.home import Home
from paceline._storage.layout import Layout
from paceline._storage.lease import taken as lease_taken
from paceline._view.words import counted
from paceline._worker.main import Job
from paceline.train import preflight
from paceline.train.backend import BackendConfig
from paceline.train.callbacks import TrainRunContext
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import CheckpointConfig, RunConfig, ScalingConfig
from paceline.train.datasets import AskedData, Served
from paceline.train.described import changed_since, describing
from paceline.train.failures import Collector, LoggerObserver, exception_of, observers_of, training_error
from paceline.train.inline import run_inline
from paceline.train.job import pickled_filesystem, pickled_job
from paceline.train.result import Result, ended, result_of
from paceline.train.site import Site
from paceline.train.terminal import Terminal
from paceline.train.validation import Validate, ValidationConfig


@dataclass(frozen=True)
class Seams:
    """What a run acts through."""

    engine: Callable[[InlineLauncher | None], Engine] | None = None
    """None: that of the place where the run's workers live."""
    around: Callable[[Engine], Engine] = lambda engine: engine
    """What is put around the engine."""
    files: Files = field(default_factory=LocalFiles)
    clock: Clock = field(default_factory=SystemClock)
    watchers: tuple[Callable[[Callable[[], None]], Observer], ...] = ()
    """Make observers that may ask the run to stop at the next report, with what they are given."""
    interrupts: Callable[[Controller], Interrupts] | None = None
    """Who may ask the run to stop while it is driven; None: signals to this process."""
    orders: Orders | None = None
    """What its workers do, where they take orders: they stand by between two of them."""
    found: Callable[[Recovered], None] | None = None
    """Is shown the run as it was found, before it is driven."""
    controller: str = ""
    """Where the driver itself is started again when it is lost: the same in each of its lives."""


class Interrupts(Protocol):
    """Passes requests to stop on to a controller for as long as a block lasts."""

    count: int
    """1: at the next report; 2 or more: now."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
    def asked(self, *, now: bool) -> None:
        """Somebody asked for a stop by a request to the run. In the controller's thread."""
        ...


@dataclass(frozen=True)
class Asked:
    """What a trainer was asked to do, checked and ready to be driven."""

    parts: Job
    """The user's function, what it is called with, and the backend around it."""
    job: bytes
    """The same, pickled."""
    run_config: RunConfig
    about: TrainRunContext
    scaling: ScalingConfig
    site: Site
    inline: bool
    """In this process, for a debugger."""
    initial: Checkpoint | None
    filesystem: bytes | None = None
    """A pickle of the one that the run is kept on, if the user gave it."""
    validation: AskedValidation | None = None
    data: AskedData | None = None
    waits_in_reports: bool = False
    """Somebody decides about every report, and workers wait for that: `Controller.let_proceed`."""
    pinned: tuple[int, ...] = ()
    """The run's checkpoints that others begin from, by number, when it is taken up again."""
    purpose: str = ""
    """What the run is made for; one that was made for something else is not continued."""
    description: bytes = b""
    """What was asked, for people, where that had to be told before it is driven: see `described`."""

    @property
    def needs(self) -> Needs:
        return Needs(self.scaling.num_cpus_per_worker, self.scaling.num_gpus_per_worker)


class OtherPurposeError(StorageError):
    """In the place of a run there is another one."""


@dataclass(frozen=True)
class AskedValidation:
    config: ValidationConfig
    job: bytes
    """Function and arguments, pickled."""
    given: Share


def played(asked: Asked, terminal: Terminal, seams: Seams) -> Result:
    """The run opened, driven and told: what `fit()` does, wherever it is done."""
    home = asked.run_config.home
    with opened(home, seams, terminal.say) as (found, depot):
        if asked.purpose and found.run.attempt and found.run.purpose != asked.purpose:
            raise OtherPurposeError(
                f"{depot.uri} holds a run that was made for something else: its reports are not this one's\n\n"
                "hint: give the run another RunConfig(name=...). In a trial, leave out storage_path, or let the name "
                "have the search's and the trial's in it: `tune.get_context().get_experiment_name()` and "
                "`get_trial_name()`, since numbers of trials come again in other searches"
            )
        if seams.found is not None:
            seams.found(found)
        left = len(found.run.unvalidated) if asked.validation is not None else 0
        if found.run.is_trained and left:
            terminal.say(f"run {home.name} is trained; {counted(left, 'validation')} left to be made")
            return driven(asked, depot, found, terminal, seams)
        if found.run.is_trained:
            terminal.say(f"run {home.name} is already complete: nothing is run. Give it another name to train again")
            _tell_changes(terminal, asked, found)
            _log_the_rest(asked, depot)
            return result_of(depot, found.run, found.history, found.reported)
        # Of a run that is kept in a store, one checkpoint at a time lies here.
        num_here = asked.run_config.checkpoint_config.num_to_keep if home.address is None else 1
        if tight := preflight.check_space(home.layout, found.run, num_here):
            terminal.say(tight)
        _announce(terminal, depot, found.run, asked.site)
        _tell_changes(terminal, asked, found)
        return driven(asked, depot, found, terminal, seams)


def _tell_changes(terminal: Terminal, asked: Asked, found: Recovered) -> None:
    if changed := changed_since(asked, found.history):
        terminal.say(f"the train_loop_config is another one than before: {changed}")


def _log_the_rest(asked: Asked, depot: Depot) -> None:
    """The driver that completed the run may have been lost before its loggers had written the last of it."""
    for observer in observers_of(asked.run_config.callbacks, asked.about, depot, continues=True):
        if isinstance(observer, LoggerObserver):
            observer.catch_up()


def _announce(terminal: Terminal, depot: Depot, run: Run, site: Site) -> None:
    begins = "continues" if run.attempt else "begins"
    where = f", from {run.latest.name}" if run.latest else ""
    terminal.say(f"run {depot.layout.root.name} {begins}{where}: {site.described()}, in {depot.uri}")


def driven(asked: Asked, depot: Depot, found: Recovered, terminal: Terminal, seams: Seams) -> Result:
    """Play the run to its end, and return or raise what came of it."""
    with asked.site.served(asked.data, terminal.say) as served:
        return _driven(asked, depot, found, terminal, seams, served)


def _driven(asked: Asked, depot: Depot, found: Recovered, terminal: Terminal, seams: Seams, served: Served) -> Result:
    described = describing(asked, found.history)
    collector = Collector(found.history, found.run, found.reported)
    observers: list[Observer] = [collector, terminal]
    callbacks = observers_of(asked.run_config.callbacks, asked.about, depot, continues=found.run.attempt > 0)
    observers += callbacks
    observers += [watcher(lambda: controller.request_stop(now=False)) for watcher in seams.watchers]
    inline = InlineLauncher() if asked.inline else None
    engine = _engine(asked, seams, terminal, inline)
    validations = (
        _validations(asked, asked.validation, depot.layout, seams, terminal) if asked.validation is not None else None
    )
    controller = Controller(
        found.run,
        journal=found.journal,
        engine=engine,
        depot=depot,
        group=lambda command, run: _group(asked, depot.layout, command, run, served.address),
        clock=seams.clock,
        needs=asked.needs,
        # Nobody hurries a person at a breakpoint.
        watch=None if asked.inline else _watch(asked, depot.layout),
        observers=observers,
        fence=found.fence,
        validations=validations,
        orders=seams.orders,
        vitals=Vitals(served.stages),
        described=described,
        clerk=Clerk(
            Reception(*asked.run_config.home.mailboxes(), found.fence.number, seams.clock),
            depot,
            seams.clock,
            stop=lambda now: interrupts.asked(now=now),
        ),
    )

    def drive() -> Run:
        with contextlib.closing(engine), contextlib.closing(validations) if validations else contextlib.nullcontext():
            return controller.drive(_started(asked, engine, seams.clock, found.fence.number))

    interrupts = (seams.interrupts or SignalInterrupts)(controller)
    failed = True
    try:
        if inline is not None:
            run = run_inline(inline, drive, asked.parts, stop=lambda: controller.request_stop(now=True))
        else:
            with interrupts:
                run = drive()
        failed = isinstance(run.phase, Finished) and run.phase.ending == "failed"
    except OSError as problem:
        result = result_of(depot, controller.run, found.history)
        result.metrics = collector.metrics
        raise ControllerError(problem, result) from problem
    finally:
        for callback in callbacks:
            callback.close(failed)
        terminal.close()
    return _ended(depot, run, collector, terminal, interrupts)


def _room(asked: Asked, engine: Engine) -> int | None:
    sizes = asked.scaling.sizes
    return engine.capacity(asked.needs, sizes[0], sizes[-1]) if len(sizes) > 1 else None


@contextlib.contextmanager
def opened(home: Home, seams: Seams, say: Callable[[str], None]) -> Iterator[tuple[Recovered, Depot]]:
    """The run, held by this driver alone and known to take what is written, and where it is kept."""
    layout = home.layout
    with preflight.undone_if_refused(layout), contextlib.ExitStack() as opening:
        make_root(seams.files, layout)
        ttl_s = settings.load().lease_ttl_s
        lease = lease_taken(home.slot(), ttl_s=ttl_s, clock=seams.clock, say=say, controller=seams.controller)
        opening.enter_context(contextlib.closing(lease))
        lease.keep()
        preflight.check_storage(seams.files, layout)
        depot = home.depot(seams.files, is_new=lease.number == 1)
        found = recovered(depot, seams.clock.wall(), lease, apart=not lease.holder.alone)
        opening.enter_context(contextlib.closing(found.journal))
        held = opening.pop_all()
    with held:
        lease.settle()
        try:
            yield found, depot
        finally:
            if not lease.lost:  # Otherwise what is staged there is the other driver's.
                depot.clear_staging(lease)
                depot.close()


def make_root(files: Files, layout: Layout) -> None:
    above = [path for path in layout.root.parents if not path.exists()]
    layout.root.parent.mkdir(parents=True, exist_ok=True)
    files.make_dir(layout.root)
    # Or a power cut could take one of the directories above the run's. Its own name the depot sees to.
    for path in above:
        files.sync_dir(path.parent)


def _started(asked: Asked, engine: Engine, clock: Clock, lease: int) -> DriverStarted:
    checkpoints, failures = asked.run_config.checkpoint_config, asked.run_config.failure_config
    return DriverStarted(
        size=asked.scaling.sizes[-1],
        sizes=asked.scaling.sizes,
        num_places=_room(asked, engine),
        resize_every_s=asked.scaling.elastic_resize_monitor_interval_s,
        max_failures=failures.max_failures,
        max_preemption_failures=failures.max_preemption_failures,
        controller_failure_limit=failures.controller_failure_limit,
        retention=retention_of(checkpoints),
        at=clock.wall(),
        pid=os.getpid(),
        host=socket.gethostname(),
        initial=asked.initial.path if asked.initial is not None else None,
        lease=lease,
        validates=asked.validation is not None,
        pinned=asked.pinned,
        purpose=asked.purpose,
    )


def retention_of(config: CheckpointConfig) -> Retention:
    return Retention(config.num_to_keep, config.checkpoint_score_attribute, config.checkpoint_score_order)


def _watch(asked: Asked, layout: Layout) -> Watch:
    config = asked.run_config.failure_config
    return Watch(config.hang_timeout_s, config.hang_action, str(layout.root))


def _group(asked: Asked, layout: Layout, command: StartWorkers, run: Run, data_address: str) -> Group:
    _, _, backend = asked.parts
    initial_filesystem = _filesystem_of(asked.initial)
    workers = []
    for rank, share in enumerate(asked.site.shares(command.size)):
        begin = Begin(
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
            global_batch_size=asked.scaling.global_batch_size,
            max_failed_saves=asked.run_config.checkpoint_config.max_failed_saves,
            store=asked.run_config.home.address,
            filesystem=asked.filesystem,
            validates=run.validates,
            shards=asked.data.shards if asked.data is not None else (),
            data_address=data_address,
            waits_in_reports=asked.waits_in_reports,
            purpose=asked.purpose,
        )
        workers.append(WorkerSpec(begin, layout.log(command.attempt, rank), share.env))
    preload = backend.preload + (asked.site.preload if asked.data is not None else ())
    return Group(command.attempt, tuple(workers), asked.job, preload, backend.preload_later, backend.start_method)


def _filesystem_of(initial: Checkpoint | None) -> bytes | None:
    return pickled_filesystem(initial.filesystem) if initial is not None and not initial.is_local else None


def _engine(
    asked: Asked,
    seams: Seams,
    terminal: Terminal,
    inline: InlineLauncher | None = None,
    beside: Needs | None = None,
) -> Engine:
    if seams.engine is not None:
        return seams.around(seams.engine(inline))
    return seams.around(asked.site.engine(inline, terminal.say, beside))


def _validations(
    asked: Asked, validation: AskedValidation, layout: Layout, seams: Seams, terminal: Terminal
) -> Validations:
    config, given = validation.config, validation.given
    _, _, backend = asked.parts

    def group(record: CheckpointRecord, number: int) -> Group:
        begin = Begin(
            run_name=layout.root.name,
            run_path=str(layout.root),
            attempt=number,
            store=asked.run_config.home.address,
            filesystem=asked.filesystem,
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
        function = Validate(validation.job, (record.seq, record.name, record.attempt), kwargs)
        # The framework of the training is imported, and not set up: a validation is no part of its group.
        job = pickled_job(function, None, BackendConfig())
        return Group(number, (spec,), job, backend.preload, start_method=backend.start_method)

    def is_retried(failed: WorkerFailed) -> bool:
        raised = bool(failed.failure.traceback)
        return config.retries(exception_of(failed.failure, failed.pickled) if raised else None)

    def engine() -> Engine:
        return _engine(asked, seams, terminal, beside=Needs(config.num_cpus, config.num_gpus))

    validator = Validator(engine, group, config.timeout_s, config.max_retries, is_retried)
    return Validations(validator, seams.clock)


def _is_nobodys(handler: object) -> bool:
    """Whether the script has no handler of its own. `ray.init()` puts one there that ends the process."""
    return handler is signal.SIG_DFL or getattr(handler, "__module__", None) == "ray._private.worker"


class Interruptible(Protocol):
    def request_stop(self, *, now: bool) -> None: ...
    def request_preemption(self, grace_s: float) -> None: ...


class SignalInterrupts:
    """Signals while a run is driven, in the main thread.

    Ctrl-C once asks for a stop at the next report, twice for one now. SIGTERM and SIGUSR1 say that the machine is about
    to be taken away, unless the script has a handler of its own for them; SIGTERM twice is a stop now.
    """

    def __init__(self, controller: Interruptible) -> None:
        self.count = 0
        self._num_notices = 0
        self._controller = controller
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._take)
            for signum in (signal.SIGTERM, signal.SIGUSR1):
                if _is_nobodys(signal.getsignal(signum)):
                    self._before[signum] = signal.signal(signum, self._take_notice)

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def asked(self, *, now: bool) -> None:
        self.count = max(self.count, 2 if now else 1)
        self._controller.request_stop(now=now)

    def _take(self, *_: object) -> None:
        self.count += 1
        self._controller.request_stop(now=self.count > 1)

    def _take_notice(self, signum: int, _: object) -> None:
        self._num_notices += signum == signal.SIGTERM
        if self._num_notices > 1:
            self._controller.request_stop(now=True)
        else:
            self._controller.request_preemption(settings.load().preemption_grace_s)


def _ended(depot: Depot, run: Run, collector: Collector, terminal: Terminal, interrupts: Interrupts) -> Result:
    assert isinstance(run.phase, Finished)
    layout = depot.layout
    result = result_of(depot, run, ())
    result.metrics = ended(collector.metrics, run)
    result.return_value = collector.return_value
    if run.phase.ending == "failed":
        error = training_error(depot, run, collector.failures, result)
        result.error = error
        raise error
    if interrupts.count > 1:
        raise KeyboardInterrupt
    if run.phase.ending == "preempted" or (run.preempted and run.unvalidated):
        result.error = PreemptionError(_preempted_text(layout, run), result)
        terminal.say(str(result.error), error=True)
        raise result.error
    if run.unvalidated and run.is_trained:
        left = counted(len(run.unvalidated), "validation")
        terminal.say(f"training is complete, but {left} not; run the script again with the same name for the rest")
    elif run.phase.ending == "interrupted":
        terminal.say(f"stopped after report {run.num_reports}; run the script again with the same name to continue")
    else:
        terminal.say(f"run {layout.root.name} is complete after {counted(run.num_reports, 'report')}")
    return result


def _preempted_text(layout: Layout, run: Run) -> str:
    lost = run.num_reports - (run.latest.seq if run.latest is not None else 0)
    since = f"{run.latest.name} (report {run.latest.seq})" if run.latest is not None else "the beginning"
    behind = f"; {counted(lost, 'report')} after it will be made again" if lost else ""
    return (
        f"run {layout.root.name} was preempted after {counted(run.num_reports, 'report')}\n\n"
        "hint: run the script again with the same RunConfig(storage_path=..., name=...) "
        f"to continue from {since}{behind}"
    )
