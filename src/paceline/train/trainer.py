"""DataParallelTrainer: keeps the arguments, makes a job of them, drives it on an engine, returns a Result."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from paceline._control.commands import StartWorkers
from paceline._control.controller import Controller, Observer
from paceline._control.events import DriverStarted, Retention
from paceline._control.recover import Recovered, is_complete, recovered
from paceline._control.run import Finished, Run
from paceline._core import settings
from paceline._core.clock import SystemClock
from paceline._core.errors import ControllerError, StorageError
from paceline._engine.base import Group, WorkerSpec
from paceline._engine.local.devices import Share, shares, this_machine
from paceline._engine.local.engine import LocalEngine
from paceline._engine.local.inline import InlineLauncher
from paceline._engine.messages import Begin
from paceline._storage.files import LocalFiles
from paceline._storage.layout import Layout
from paceline._storage.lease import Lease
from paceline.train.backend import BackendConfig
from paceline.train.callbacks import TrainRunContext
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig, as_config
from paceline.train.failures import CallbackObserver, Collector, training_error
from paceline.train.inline import run_inline
from paceline.train.job import called_with, pickled_job
from paceline.train.result import Result, result_of
from paceline.train.terminal import Terminal


class DataParallelTrainer:
    """Runs one function on many workers.

        trainer = DataParallelTrainer(train_func, scaling_config=ScalingConfig(num_workers=4))
        result = trainer.fit()

    `train_loop_per_worker` takes the `train_loop_config` as its only argument, or nothing. It may be defined anywhere,
    a notebook cell or a closure included. `resume_from_checkpoint` is what `get_checkpoint()` gives in a new run.
    """

    _default_backend: ClassVar[Callable[[], BackendConfig]] = BackendConfig

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        backend_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | Mapping[str, Any] | None = None,
        run_config: RunConfig | Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        self.train_loop_per_worker = train_loop_per_worker
        self.train_loop_config = train_loop_config
        self.backend_config = backend_config if backend_config is not None else type(self)._default_backend()
        self.scaling_config: ScalingConfig = as_config(ScalingConfig, scaling_config, "scaling_config")
        self.run_config: RunConfig = as_config(RunConfig, run_config, "run_config")
        self.resume_from_checkpoint = resume_from_checkpoint
        if not isinstance(self.backend_config, BackendConfig):
            raise ValueError(f"backend_config={backend_config!r} is not a paceline.train.BackendConfig")
        if not isinstance(resume_from_checkpoint, Checkpoint | None):
            raise ValueError(f"resume_from_checkpoint={resume_from_checkpoint!r} is not a paceline.train.Checkpoint")
        self._call = called_with(train_loop_per_worker, train_loop_config)
        self.backend_config.check(self.scaling_config.num_workers, self.scaling_config.use_gpu)

    def fit(self) -> Result:
        """Train until the function has returned on every worker.

        Raises `TrainingFailedError` when workers failed more often than `FailureConfig` allows; its `result` has what
        was reached. Ctrl-C once stops at the next report and returns; twice stops now.
        """
        scaling = self.scaling_config
        size = max(1, scaling.num_workers)
        machine = this_machine()
        given = shares(
            machine,
            size,
            cpus_per_worker=scaling.num_cpus_per_worker,
            gpus_per_worker=scaling.num_gpus_per_worker,
        )
        job = pickled_job(self.train_loop_per_worker, self._call, self.backend_config)
        layout = Layout(self.run_config.path)
        chosen = settings.load()
        terminal = Terminal(layout, chosen.verbosity, chosen.report_notice_s)
        with _opened(layout) as found:
            if is_complete(found.run):
                terminal.say(
                    f"run {layout.root.name} is already complete: nothing is run. Give it another name to train again"
                )
                return result_of(layout, found.run, found.history)
            _announce(terminal, layout, found.run, size, machine.num_cores, given[0])
            return self._driven(layout, found, terminal, job, given)

    def _driven(
        self, layout: Layout, found: Recovered, terminal: Terminal, job: bytes, given: tuple[Share, ...]
    ) -> Result:
        checkpoints, failures = self.run_config.checkpoint_config, self.run_config.failure_config
        size = len(given)
        initial = self.resume_from_checkpoint
        first = DriverStarted(
            size=size,
            max_failures=failures.max_failures,
            retention=Retention(
                checkpoints.num_to_keep,
                checkpoints.checkpoint_score_attribute,
                checkpoints.checkpoint_score_order,
            ),
            at=SystemClock().wall(),
            pid=os.getpid(),
            host=socket.gethostname(),
            initial=initial.path if initial is not None else None,
        )
        collector = Collector(found.history, found.run)
        observers: list[Observer] = [collector, terminal]
        about = TrainRunContext(
            layout.root.name,
            self.run_config,
            self.train_loop_config,
            self.scaling_config,
            self.backend_config,
        )
        observers += [CallbackObserver(callback, about, layout, size) for callback in self.run_config.callbacks]
        inline = InlineLauncher() if self.scaling_config.num_workers == 0 else None
        engine = LocalEngine(inline)
        controller = Controller(
            found.run,
            journal=found.journal,
            engine=engine,
            files=LocalFiles(),
            layout=layout,
            group=lambda command, run: _group(layout, command, run, job, given, self.backend_config),
            clock=SystemClock(),
            observers=observers,
        )

        def drive() -> Run:
            with contextlib.closing(engine):
                return controller.drive(first)

        interrupts = _Interrupts(controller)
        try:
            if inline is not None:
                run = run_inline(inline, drive, (self.train_loop_per_worker, self._call, self.backend_config))
            else:
                with interrupts:
                    run = drive()
        except OSError as problem:
            result = result_of(layout, controller.run, found.history)
            raise ControllerError(problem, result) from problem
        finally:
            terminal.close()
        return _ended(layout, run, collector, terminal, interrupts)


class _Interrupts:
    """Ctrl-C while a run is driven: once asks for a stop at the next report, twice for one now."""

    def __init__(self, controller: Controller) -> None:
        self.count = 0
        self._controller = controller
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._take)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _take(self, *_: object) -> None:
        self.count += 1
        self._controller.request_stop(now=self.count > 1)


@contextlib.contextmanager
def _opened(layout: Layout) -> Iterator[Recovered]:
    """The run's directory, held by this driver alone."""
    try:
        layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lease = Lease(layout.lease, SystemClock().wall())
    except OSError as problem:
        if isinstance(problem, StorageError):
            raise
        raise StorageError(f"the run cannot be kept in {layout.root}: {problem}") from problem
    with contextlib.closing(lease):
        found = recovered(LocalFiles(), layout, SystemClock().wall())
        with contextlib.closing(found.journal):
            try:
                yield found
            finally:
                LocalFiles().remove_tree(layout.staging)


def _announce(terminal: Terminal, layout: Layout, run: Run, size: int, num_cores: int, share: Share) -> None:
    threads = _counted(share.num_threads, "thread") + (" each" if size > 1 else "")
    if size > num_cores:
        threads += f"; more than the {num_cores} cores here, so they take turns"
    workers = _counted(size, "worker")
    begins = "continues" if run.attempt else "begins"
    where = f", from {run.latest.name}" if run.latest else ""
    terminal.say(f"run {layout.root.name} {begins}{where}: {workers} on this machine ({threads}), in {layout.root}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _group(
    layout: Layout,
    command: StartWorkers,
    run: Run,
    job: bytes,
    given: tuple[Share, ...],
    backend: BackendConfig,
) -> Group:
    workers = []
    for rank, share in enumerate(given):
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
            resume=command.resume,
            score_attribute=run.retention.score_attribute,
            score_order=run.retention.score_order,
        )
        workers.append(WorkerSpec(begin, layout.log(command.attempt, rank), share.env))
    return Group(command.attempt, tuple(workers), job, backend.preload, backend.preload_later, backend.start_method)


def _ended(layout: Layout, run: Run, collector: Collector, terminal: Terminal, interrupts: _Interrupts) -> Result:
    assert isinstance(run.phase, Finished)
    result = result_of(layout, run, ())
    result.metrics = collector.metrics
    result.return_value = collector.return_value
    if run.phase.ending == "failed":
        error = training_error(layout, run, collector.failures, result)
        result.error = error
        raise error
    if interrupts.count > 1:
        raise KeyboardInterrupt
    if run.phase.ending == "interrupted":
        terminal.say(f"stopped after report {run.num_reports}; run the script again with the same name to continue")
    else:
        terminal.say(f"run {layout.root.name} is complete after {_counted(run.num_reports, 'report')}")
    return result
