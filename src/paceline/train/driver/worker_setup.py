"""Builds what a run starts with: the engine, its first event, worker groups, and the controller's extensions."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import FrameType
from typing import Any

import cloudpickle

from paceline._control import extensions
from paceline._control.commands import StartWorkers
from paceline._control.controller import Controller
from paceline._control.events import DriverStarted, Retention
from paceline._control.extensions import Extension
from paceline._control.recovery import RecoveredRun
from paceline._control.run import Run
from paceline._control.usage_collector import UsageCollector
from paceline._control.validation_runner import ValidationRunner, ValidationSetup
from paceline._core import settings
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._engine.base import Engine, WorkerGroupSpec, WorkerResources, WorkerSpec
from paceline._engine.local.launchers import InlineLauncher
from paceline._engine.messages import ShardSpec, WorkerFailed, WorkerInit
from paceline._storage.lease import Fence
from paceline._storage.run_layout import RunLayout
from paceline._worker.context import WorkerContext
from paceline._worker.link import DriverLink
from paceline._worker.main import Job, make_message_handler, work
from paceline._worker.signals import forward_signals
from paceline._worker.usage import UsageMeter
from paceline.train.backend import BackendConfig
from paceline.train.config import CheckpointConfig
from paceline.train.display.terminal import Terminal
from paceline.train.driver import run_metadata
from paceline.train.driver.datasets import DataEndpoint
from paceline.train.driver.failures import to_exception
from paceline.train.driver.job import pickle_filesystem, pickle_job
from paceline.train.driver.run_spec import RunEnvironment, RunHooks, RunSpec, ValidationSpec
from paceline.train.driver.validation import ValidationFunction


def make_start_event(spec: RunSpec, controller: Controller, fence: Fence) -> DriverStarted:
    checkpoints, failures = spec.run_config.checkpoint_config, spec.run_config.failure_config
    sizes = spec.scaling_config.sizes
    fails_fast = failures.fail_fast and not spec.trial_id  # A search does it itself.
    return DriverStarted(
        size=sizes[-1],
        sizes=sizes,
        num_places=controller.engine.capacity(spec.needs, sizes[0], sizes[-1]) if len(sizes) > 1 else None,
        resize_every_s=spec.scaling_config.elastic_resize_monitor_interval_s,
        max_failures=failures.max_failures,
        max_preemption_failures=0 if fails_fast else failures.max_preemption_failures,
        controller_failure_limit=0 if fails_fast else failures.controller_failure_limit,
        exit_grace_s=settings.exit_grace_s(),
        retention=to_retention(checkpoints),
        at=controller.clock.wall(),
        pid=os.getpid(),
        host=socket.gethostname(),
        initial=spec.initial_checkpoint.path if spec.initial_checkpoint is not None else None,
        lease=fence.number,
        validates=spec.validation is not None,
        pinned=spec.pinned,
        purpose=spec.purpose,
    )


def to_retention(config: CheckpointConfig) -> Retention:
    return Retention(config.num_to_keep, config.checkpoint_score_attribute, config.checkpoint_score_order)


def make_engine(
    spec: RunSpec,
    environment: RunEnvironment,
    terminal: Terminal,
    inline: InlineLauncher | None = None,
    beside: WorkerResources | None = None,
) -> Engine:
    if environment.make_engine is not None:
        return environment.wrap_engine(environment.make_engine(inline))
    return environment.wrap_engine(spec.target.make_engine(inline, terminal.say, beside))


@dataclass(frozen=True)
class GroupBuilder:
    """Builds the worker group of an attempt."""

    spec: RunSpec
    layout: RunLayout
    data_address: str
    """Where workers reach the datasets."""

    def __call__(self, command: StartWorkers, run: Run) -> WorkerGroupSpec:
        spec, layout = self.spec, self.layout
        _, _, backend = spec.job_parts
        initial = spec.initial_checkpoint
        initial_filesystem = (
            pickle_filesystem(initial.filesystem) if initial is not None and not initial.is_local else None
        )
        shards = spec.datasets.shards if spec.datasets is not None else ()
        configured = spec.datasets.configure_iterators(command.size) if spec.datasets is not None else None
        workers = []
        logging_config = spec.run_config.logging_config
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
                skips_saves=spec.run_config.checkpoint_config.on_backlog == "skip",
                store=spec.run_config.location.address,
                filesystem=spec.pickled_filesystem,
                validates=run.validates,
                shards=shards if configured is None else tuple(map(ShardSpec, configured[rank])),
                data_address=self.data_address,
                iterators=cloudpickle.dumps(configured[rank]) if configured is not None else None,
                waits_in_reports=spec.waits_in_reports,
                has_own_directory=spec.has_own_directory,
                uploads_artifacts=spec.uploads_artifacts,
                purpose=spec.purpose,
                trial_id=spec.trial_id,
                user_metadata=spec.user_metadata,
                log_files=spec.run_config.log_files if rank == 0 else (),
                log_level=logging_config.log_level if logging_config is not None else "",
                preemption_grace_s=spec.run_config.failure_config.preemption_grace_s,
                trial_name=spec.trial_name,
            )
            workers.append(WorkerSpec(begin, layout.log(command.attempt, rank), share.env))
        preload = backend.preload + (spec.target.preload if spec.datasets is not None else ())
        return WorkerGroupSpec(
            command.attempt, tuple(workers), spec.pickled_job, preload, backend.preload_later, backend.start_method
        )


def make_validation_runner(
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
            has_own_directory=spec.has_own_directory,
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

    def make_validation_engine() -> Engine:
        return make_engine(spec, environment, terminal, beside=WorkerResources(config.num_cpus, config.num_gpus))

    validator = ValidationSetup(make_validation_engine, build_group, config.timeout_s, config.max_retries, should_retry)
    return ValidationRunner(validator, environment.clock)


def run_inline(launcher: InlineLauncher, drive: Callable[[], Run], job: Job, stop: Callable[[], None]) -> Run:
    """Drive the run in a thread, and act as its only worker until it ends. `stop` asks the run to end now.

    A Ctrl-C in the function is reported as its failure, and stops the run.
    """
    outcome: Future[Run] = Future()
    is_in_function = False

    def handle_sigint(signum: int, frame: FrameType | None) -> None:
        if is_in_function:
            signal.default_int_handler(signum, frame)
        stop()

    def drive_in_thread() -> None:
        try:
            outcome.set_result(drive())
        except BaseException as error:  # noqa: BLE001  raised again below, in the user's thread
            outcome.set_exception(error)

    @functools.wraps(job[0], updated=())
    def call(*config: Any) -> Any:
        try:
            return job[0](*config)
        except KeyboardInterrupt:
            stop()  # Before the controller hears of the failure, so that there is no further attempt.
            raise

    thread = threading.Thread(target=drive_in_thread, name="paceline-controller", daemon=True)
    thread.start()
    with _handling_sigint(handle_sigint):
        while (end := launcher.wait_for_worker()) is not None:
            link = DriverLink(end, on_gone=lambda: None)
            begin = link.receive()
            assert isinstance(begin, WorkerInit)
            context = WorkerContext(begin, link)
            usage = UsageMeter(context, shared=True)
            link.listen(make_message_handler(context, link, usage), context.handle_signal)
            with forward_signals(link):
                is_in_function = True
                try:
                    code = work(context, link, usage, lambda: (call, *job[1:]))
                finally:
                    is_in_function = False
            launcher.report_exit(code)
            link.close()
            usage.close()
        thread.join()
    return outcome.result()


@contextlib.contextmanager
def _handling_sigint(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle Ctrl-C in the main thread, unless the script has its own handler."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def make_extensions(
    spec: RunSpec,
    hooks: RunHooks,
    recovered: RecoveredRun,
    environment: RunEnvironment,
    endpoint: DataEndpoint,
    terminal: Terminal,
) -> list[Extension]:
    """What the controller of this run looks after beside its loop."""
    layout, hang_watch = spec.run_config.location.layout, None
    if not spec.is_inline:  # No hang detection for a person at a breakpoint.
        config = spec.run_config.failure_config
        storage, inspector = terminal.storage_uri, endpoint.inspector
        hang_watch = extensions.HangWatch(config.hang_timeout_s, config.hang_action, storage, inspector)
    made: list[Extension] = [hang_watch] if hang_watch is not None else []
    made += [UsageCollector(endpoint.read_stages), extensions.CapacityWatch(spec.needs)]
    if spec.validation is not None:
        made.append(make_validation_runner(spec, spec.validation, layout, environment, terminal))
    if hooks.task_queue is not None:
        made.append(extensions.TaskDispatch(hooks.task_queue, hang_watch))
    description = run_metadata.collect_metadata_in_background(spec, recovered.history)
    return [*made, extensions.DescriptionRecorder(description)]
