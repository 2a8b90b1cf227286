"""A run from opening its directory to its result: how `fit()`, trials, detached runs and resume proofs run.

with RunSession(spec, terminal, environment) as session:
    return session.execute()
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Protocol, Self

from paceline._control import extensions
from paceline._control.controller import Controller
from paceline._control.request_handler import RequestHandler
from paceline._control.run import Finished, Run
from paceline._control.usage_collector import UsageCollector
from paceline._core import settings
from paceline._core.errors import ControllerError
from paceline._engine.local.launchers import InlineLauncher
from paceline._view.formatting import format_count
from paceline.train.display.terminal import Terminal, make_terminal
from paceline.train.driver import failures, preflight, run_metadata, worker_setup
from paceline.train.driver.callback_thread import CallbackThread
from paceline.train.driver.datasets import DataEndpoint
from paceline.train.driver.execution_target import choose_target
from paceline.train.driver.failures import conclude_run
from paceline.train.driver.run_directory import open_run
from paceline.train.driver.run_spec import DifferentRunError, RunEnvironment, RunHooks, RunSpec
from paceline.train.driver.trainer_arguments import TrainerArguments, build_run_spec
from paceline.train.driver.worker_setup import run_inline
from paceline.train.result import Result, build_result


def run_trainer(arguments: TrainerArguments, hooks: RunHooks | None = None) -> Result:
    """Run what a trainer was constructed for, here or detached on the cluster."""
    run_config = arguments.run_config
    target = choose_target(arguments.scaling_config, run_config)
    target.check()
    spec = build_run_spec(arguments, target)
    if run_config.detached:
        from paceline.train.driver.detached import fit_detached

        return fit_detached(spec)
    terminal = make_terminal(run_config.location.layout, arguments.train_loop_config, inline=spec.is_inline)
    return execute_run(spec, terminal, arguments.environment, hooks)


def execute_run(
    spec: RunSpec, terminal: Terminal, environment: RunEnvironment, hooks: RunHooks | None = None
) -> Result:
    """Open the run, drive it, and report its outcome."""
    with RunSession(spec, terminal, environment, hooks) as session:
        return session.execute()


class RunSession:
    def __init__(
        self, spec: RunSpec, terminal: Terminal, environment: RunEnvironment, hooks: RunHooks | None = None
    ) -> None:
        self._spec = spec
        self._terminal = terminal
        self._environment = environment
        self._hooks = hooks or RunHooks()
        self._location = spec.run_config.location
        self._directory = open_run(self._location, environment, terminal.say)

    def __enter__(self) -> Self:
        """Open the run's directory and hold its lease."""
        self._recovered, self._store = self._directory.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._directory.__exit__(kind, error, traceback)  # type: ignore[arg-type]

    def execute(self) -> Result:
        """Drive the run to its end, unless it is complete; return its result or raise its error."""
        run, spec, say = self._recovered.run, self._spec, self._terminal.say
        self._check_purpose()
        if self._hooks.on_recovered is not None:
            self._hooks.on_recovered(self._recovered)
        num_left = len(run.pending_validations) if spec.validation is not None else 0
        if run.is_trained and not num_left:
            say(f"run {self._location.name} is already complete; use another name to train again")
            self._report_config_changes()
            self._catch_up_loggers()
            return build_result(self._store, run, self._recovered.history, self._recovered.last_report)
        if run.is_trained:
            say(f"run {self._location.name} is trained; {format_count(num_left, 'validation')} left to do")
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
                "`tune.get_context().get_experiment_name()` and `get_trial_name()`: searches share trial numbers"
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
        self._report_config_changes()

    def _report_config_changes(self) -> None:
        if changed := run_metadata.describe_config_changes(self._spec, self._recovered.history):
            self._terminal.say(f"train_loop_config changed since the last run: {changed}")

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
        observers = self._make_callback_observers()
        callbacks = [CallbackThread(observers, settings.load().callback_timeout_s)] if observers else []
        inline = InlineLauncher() if self._spec.is_inline else None
        engine = worker_setup.make_engine(self._spec, environment, self._terminal, inline)
        requests = RequestHandler(self._location.open_mailboxes(), recovered.fence.number)
        build_group = worker_setup.GroupBuilder(self._spec, self._store.layout, endpoint.address)
        with contextlib.ExitStack() as closing:
            closing.callback(engine.close)
            controller = Controller(
                recovered,
                engine=engine,
                store=self._store,
                group=build_group,
                clock=environment.clock,
                observers=[collector, self._terminal, *callbacks],
                extensions=[requests, *self._make_extensions(endpoint)],
            )
            for make_observer in self._hooks.observer_factories:
                controller.add_observer(make_observer(lambda: controller.request_stop(now=False)))
            for callback_thread in callbacks:
                controller.hold_checkpoints(callback_thread.is_held)
            interrupts = requests.interrupts = (self._hooks.make_interrupts or SignalInterrupts)(controller)
            failed = True
            try:
                run = self._run_controller(controller, inline, interrupts, closing.pop_all())
                failed = isinstance(run.phase, Finished) and run.phase.ending == "failed"
            except OSError as problem:
                result = build_result(self._store, controller.run, recovered.history)
                result.metrics = collector.metrics
                raise ControllerError(problem, result) from problem
            finally:
                for callback_thread in callbacks:
                    callback_thread.close(failed)
                    controller.delete_deferred()
                self._terminal.close()
        return conclude_run(self._store, run, collector, self._terminal, interrupts)

    def _run_controller(
        self,
        controller: Controller,
        inline: InlineLauncher | None,
        interrupts: extensions.Interrupts,
        closing: contextlib.ExitStack,
    ) -> Run:
        def drive() -> Run:
            with closing:
                return controller.drive(worker_setup.make_start_event(self._spec, controller, self._recovered.fence))

        if inline is not None:
            return run_inline(inline, drive, self._spec.job_parts, stop=lambda: controller.request_stop(now=True))
        with interrupts:
            return drive()

    def _make_extensions(self, endpoint: DataEndpoint) -> list[extensions.Extension]:
        spec, hang_watch = self._spec, None
        if not spec.is_inline:  # No hang detection for a person at a breakpoint.
            config = spec.run_config.failure_config
            hang_watch = extensions.HangWatch(config.hang_timeout_s, config.hang_action, str(self._store.layout.root))
        made: list[extensions.Extension] = [hang_watch] if hang_watch is not None else []
        made += [UsageCollector(endpoint.read_stages), extensions.CapacityWatch(spec.needs)]
        if spec.validation is not None:
            made.append(
                worker_setup.make_validation_runner(
                    spec, spec.validation, self._store.layout, self._environment, self._terminal
                )
            )
        if self._hooks.task_queue is not None:
            made.append(extensions.TaskDispatch(self._hooks.task_queue, hang_watch))
        description = run_metadata.collect_metadata_in_background(spec, self._recovered.history)
        return [*made, extensions.DescriptionRecorder(description)]


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
