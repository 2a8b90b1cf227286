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
from typing import Any

from paceline._control.commands import StartWorkers
from paceline._control.controller import Controller, Observer
from paceline._control.events import DriverStarted, Retention
from paceline._control.recover import Recovered, recovered
from paceline._control.run import Finished, Run
from paceline._core.clock import Clock, SystemClock
from paceline._core.errors import ControllerError
from paceline._engine.base import Engine, Group, WorkerSpec
from paceline._engine.local.devices import Share
from paceline._engine.local.engine import LocalEngine
from paceline._engine.local.inline import InlineLauncher
from paceline._engine.messages import Begin
from paceline._storage.files import Files, LocalFiles
from paceline._storage.layout import Layout
from paceline._storage.lease import Lease
from paceline._worker.main import Job
from paceline.train import preflight
from paceline.train.callbacks import TrainRunContext
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig
from paceline.train.failures import CallbackObserver, Collector, training_error
from paceline.train.inline import run_inline
from paceline.train.result import Result, result_of
from paceline.train.terminal import Terminal, counted


@dataclass(frozen=True)
class Seams:
    """What a run acts through."""

    engine: Callable[[InlineLauncher | None], Engine] = LocalEngine
    files: Files = field(default_factory=LocalFiles)
    clock: Clock = field(default_factory=SystemClock)
    watchers: tuple[Callable[[Callable[[], None]], Observer], ...] = ()
    """Make observers that may ask the run to stop at the next report, with what they are given."""


@dataclass(frozen=True)
class Asked:
    """What a trainer was asked to do, checked and ready to be driven."""

    parts: Job
    """The user's function, what it is called with, and the backend around it."""
    job: bytes
    """The same, pickled."""
    run_config: RunConfig
    about: TrainRunContext
    given: tuple[Share, ...]
    """What each worker gets."""
    inline: bool
    """In this process, for a debugger."""
    initial: Checkpoint | None


def driven(asked: Asked, layout: Layout, found: Recovered, terminal: Terminal, seams: Seams) -> Result:
    """Play the run to its end, and return or raise what came of it."""
    size = len(asked.given)
    collector = Collector(found.history, found.run)
    observers: list[Observer] = [collector, terminal]
    observers += [CallbackObserver(callback, asked.about, layout, size) for callback in asked.run_config.callbacks]
    observers += [watcher(lambda: controller.request_stop(now=False)) for watcher in seams.watchers]
    inline = InlineLauncher() if asked.inline else None
    engine = seams.engine(inline)
    controller = Controller(
        found.run,
        journal=found.journal,
        engine=engine,
        files=seams.files,
        layout=layout,
        group=lambda command, run: _group(asked, layout, command, run),
        clock=seams.clock,
        observers=observers,
    )

    def drive() -> Run:
        with contextlib.closing(engine):
            return controller.drive(_started(asked, seams.clock))

    interrupts = _Interrupts(controller)
    try:
        if inline is not None:
            run = run_inline(inline, drive, asked.parts)
        else:
            with interrupts:
                run = drive()
    except OSError as problem:
        result = result_of(layout, controller.run, found.history)
        raise ControllerError(problem, result) from problem
    finally:
        terminal.close()
    return _ended(layout, run, collector, terminal, interrupts)


@contextlib.contextmanager
def opened(layout: Layout, seams: Seams) -> Iterator[Recovered]:
    """The run's directory, held by this driver alone and known to take what is written."""
    with contextlib.ExitStack() as held:
        with preflight.directory_made(layout):
            held.enter_context(contextlib.closing(Lease(layout.lease, seams.clock.wall())))
            preflight.check_storage(seams.files, layout)
            found = recovered(seams.files, layout, seams.clock.wall())
            held.enter_context(contextlib.closing(found.journal))
        try:
            yield found
        finally:
            seams.files.remove_tree(layout.staging)


def _started(asked: Asked, clock: Clock) -> DriverStarted:
    checkpoints, failures = asked.run_config.checkpoint_config, asked.run_config.failure_config
    return DriverStarted(
        size=len(asked.given),
        max_failures=failures.max_failures,
        retention=Retention(
            checkpoints.num_to_keep,
            checkpoints.checkpoint_score_attribute,
            checkpoints.checkpoint_score_order,
        ),
        at=clock.wall(),
        pid=os.getpid(),
        host=socket.gethostname(),
        initial=asked.initial.path if asked.initial is not None else None,
    )


def _group(asked: Asked, layout: Layout, command: StartWorkers, run: Run) -> Group:
    _, _, backend = asked.parts
    workers = []
    for rank, share in enumerate(asked.given):
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
    return Group(
        command.attempt, tuple(workers), asked.job, backend.preload, backend.preload_later, backend.start_method
    )


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
        terminal.say(f"run {layout.root.name} is complete after {counted(run.num_reports, 'report')}")
    return result
