"""A run from opening its directory to its result: how `fit()`, trials, detached runs and resume proofs run.

with RunSession(spec, terminal, environment) as session:
    return session.execute()
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Self

from paceline._control.controller import Controller
from paceline._control.extensions import Interrupts
from paceline._control.recovery import iter_reports_so_far
from paceline._control.request_handler import RequestHandler
from paceline._control.run import Finished, Run
from paceline._core.errors import ControllerError, RunHeldError
from paceline._core.process_setup import prepare_driver
from paceline._engine.local.launchers import InlineLauncher
from paceline._storage.lease import Fence
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import RunStore
from paceline._view.formatting import format_count
from paceline._view.journal.outline import make_outline
from paceline._view.model import encode
from paceline._view.run_reader import RunReader
from paceline.train.display.terminal import Terminal
from paceline.train.driver import callback_thread, failures, preflight, run_metadata, worker_setup
from paceline.train.driver.datasets import DataEndpoint
from paceline.train.driver.interrupts import SignalInterrupts
from paceline.train.driver.run_directory import make_different_run_error, open_run
from paceline.train.driver.run_spec import DifferentRunError, RunEnvironment, RunHooks, RunSpec
from paceline.train.driver.stop_condition import StopCondition
from paceline.train.result import Result, build_result

log = logging.getLogger("paceline")

SHORTENED_BYTES = 8 << 20
"""From this size on, reading a journal takes noticeably long: when the run has ended, a snapshot is kept beside it."""
ARCHIVED_BYTES = 64 << 20
"""From this size on, the journal of a run that has ended is compressed."""


def execute_run(
    spec: RunSpec, terminal: Terminal, environment: RunEnvironment, hooks: RunHooks | None = None
) -> Result:
    """Open the run, drive it, and report its outcome."""
    with RunSession(spec, terminal, environment, hooks) as session:
        return session.execute()


def shorten_journal(
    location: RunLocation, store: RunStore, fence: Fence, write_snapshot: Callable[[bytes], None]
) -> None:
    """Compress the journal of a run that has ended, if it is long, and call `write_snapshot` with the run's summary."""
    reader = RunReader(location)
    reader.refresh()
    if store.layout.journal.stat().st_size >= ARCHIVED_BYTES:
        store.archive_journal(fence)
    write_snapshot(encode(reader.summary()))


class RunSession:
    def __init__(
        self, spec: RunSpec, terminal: Terminal, environment: RunEnvironment, hooks: RunHooks | None = None
    ) -> None:
        prepare_driver()
        self._spec = spec
        self._terminal = terminal
        self._environment = environment
        self._hooks = hooks or RunHooks()
        self._stop: StopCondition | None = None
        self._location = spec.run_config.location.share_store()
        self._directory = open_run(self._location, environment, terminal.say, is_probed=bool(spec.trial_id))

    def __enter__(self) -> Self:
        """Open the run's directory and hold its lease."""
        self._recovered, self._store = self._directory.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._directory.__exit__(kind, error, traceback)  # type: ignore[arg-type]

    def execute(self) -> Result:
        """Drive the run to its end, unless it is complete; return its result or raise its error."""
        run, spec, say = self._recovered.run, self._spec, self._terminal.say
        self._terminal.storage_uri = self._store.uri
        self._check_purpose()
        if self._hooks.on_recovered is not None:
            self._hooks.on_recovered(self._recovered)
        num_left = len(run.pending_validations) if spec.validation is not None else 0
        if spec.stop is not None and not run.is_trained:
            past = iter_reports_so_far(self._store.layout) if run.attempt else ()
            self._stop = StopCondition(spec.stop, self._location.name, past)
            if self._stop.is_satisfied:
                say(f"run {self._location.name} has reached RunConfig(stop=...); use another name to train again")
                self._catch_up_loggers()
                return build_result(self._store, run, self._recovered.history, self._recovered.last_report)
        if run.is_trained and not num_left:
            self._check_changes()
            say(f"run {self._location.name} has already finished; use another name to train again")
            self._report_changes()
            self._catch_up_loggers()
            return build_result(self._store, run, self._recovered.history, self._recovered.last_report)
        if run.is_trained:
            say(f"run {self._location.name} is trained; {format_count(num_left, 'validation')} left to do")
            self._report_changes()
        else:
            self._announce_start()
        with spec.target.serve_datasets(spec.datasets, say) as endpoint:
            return self._drive(endpoint)

    def _check_purpose(self) -> None:
        run, purpose = self._recovered.run, self._spec.purpose
        if purpose and run.attempt and run.purpose != purpose:
            raise DifferentRunError(
                f"{self._store.uri} already contains a different run\n\n"
                "hint: use another RunConfig(name=...). In a trial, omit storage_path, or build the name from "
                "`tune.get_context().get_trial_id()`"
            )

    def _announce_start(self) -> None:
        run, store, spec = self._recovered.run, self._store, self._spec
        # For a run in a store, only one checkpoint at a time is on this machine.
        num_here = spec.run_config.checkpoint_config.num_to_keep if self._location.address is None else 1
        if warning := preflight.check_space(store.layout, run, num_here):
            self._terminal.say(warning)
        verb = "continues" if run.attempt else "begins"
        origin = f", from {run.latest.name}" if run.latest else ""
        self._terminal.say(f"run {store.layout.root.name} {verb}{origin}: {spec.target.describe()}, in {store.uri}")
        self._report_changes()

    def _check_changes(self) -> None:
        """Raise if the run is complete and was another one: its result is not what is asked for now."""
        if self._spec.run_config.if_exists == "resume":
            return
        if changes := run_metadata.find_changes_of_run(self._spec, self._recovered.history, only_certain=True):
            raise make_different_run_error("run", self._location.name, self._store.uri, changes)

    def _report_changes(self) -> None:
        for change in run_metadata.find_changes_of_run(self._spec, self._recovered.history):
            self._terminal.say(change)

    def _catch_up_loggers(self) -> None:
        """Log the last reports: the driver that completed the run may have been lost before its loggers wrote them."""
        for callback in self._make_callback_observers():
            if isinstance(callback, failures.LoggerObserver):
                callback.catch_up()

    def _make_callback_observers(self) -> failures.CallbackObservers:
        continues = self._recovered.run.attempt > 0
        spec = self._spec
        return failures.make_observers(spec.run_config.callbacks, spec.run_context, self._store, continues=continues)

    def _drive(self, endpoint: DataEndpoint) -> Result:
        recovered, environment = self._recovered, self._environment
        collector = failures.ResultCollector(recovered.history, recovered.run, recovered.last_report)
        synchronous, threads = callback_thread.start_callback_threads(self._make_callback_observers())
        inline = InlineLauncher() if self._spec.is_inline else None
        engine = worker_setup.make_engine(self._spec, environment, self._terminal, inline)
        requests = RequestHandler(self._location.open_mailboxes(), recovered.fence.number, endpoint.inspector)
        beside = worker_setup.make_extensions(self._spec, self._hooks, recovered, environment, endpoint, self._terminal)
        build_group = worker_setup.GroupBuilder(self._spec, self._store.layout, endpoint.address)
        with contextlib.ExitStack() as closing:
            closing.callback(engine.close)
            controller = Controller(
                recovered,
                engine=engine,
                store=self._store,
                group=build_group,
                clock=environment.clock,
                observers=[collector, self._terminal, *synchronous, *threads],
                extensions=[requests, *beside],
                make_outline=make_outline if self._location.address is None else None,
            )
            for make_observer in self._hooks.observer_factories:
                controller.add_observer(make_observer(lambda: controller.request_stop(now=False)))
            for thread in threads:
                controller.hold_checkpoints(thread.is_held)
            if self._stop is not None:
                self._stop.attach(controller)
            make_interrupts = self._hooks.make_interrupts or self._make_signal_interrupts
            interrupts = requests.interrupts = make_interrupts(controller)
            failed = True
            try:
                run = self._run_controller(controller, inline, interrupts, closing.pop_all())
                failed = isinstance(run.phase, Finished) and run.phase.ending == "failed"
            except OSError as problem:
                result = build_result(self._store, controller.run, recovered.history)
                result.metrics, result.status = collector.metrics, "failed"
                raise ControllerError(problem, result) from problem
            finally:
                for observer in synchronous:
                    observer.close(failed)
                for thread in threads:
                    thread.close(failed)
                    controller.delete_deferred()
                self._terminal.close()
        self._shorten_journal(controller)
        if self._stop is not None and self._stop.error is not None:
            raise self._stop.error
        on_stop = self._spec.run_config.on_stop
        is_done = self._stop is not None and self._stop.is_satisfied
        return failures.conclude_run(self._store, run, collector, self._terminal, interrupts, on_stop, is_done=is_done)

    def _shorten_journal(self, controller: Controller) -> None:
        """Compress a long journal of a run that has ended, and store what is asked for most."""
        journal = self._recovered.journal
        is_long = self._location.address is None and journal.length >= SHORTENED_BYTES
        if not is_long or not isinstance(controller.run.phase, Finished):
            return
        try:
            journal.close()
            shorten_journal(self._location, self._store, self._recovered.fence, controller.write_last_snapshot)
        except RunHeldError:
            raise
        except OSError as error:
            log.warning("cannot compress the journal of %s: %s", self._store.uri, error)

    def _make_signal_interrupts(self, controller: Controller) -> SignalInterrupts:
        return SignalInterrupts(controller, self._spec.run_config.failure_config.preemption_grace_s)

    def _run_controller(
        self,
        controller: Controller,
        inline: InlineLauncher | None,
        interrupts: Interrupts,
        closing: contextlib.ExitStack,
    ) -> Run:
        def drive() -> Run:
            with closing:
                return controller.drive(worker_setup.make_start_event(self._spec, controller, self._recovered.fence))

        def stop_now() -> None:
            interrupts.has_ctrl_c = True
            controller.request_stop(now=True)

        if inline is not None:
            return worker_setup.run_inline(inline, drive, self._spec.job_parts, stop_now)
        with interrupts:
            return drive()
