"""A run driven by an actor on the cluster. Submit it, follow it from here, and find it again later.

The actor gets everything that `fit()` would have driven here, and uses the same journal and lease. This process prints
the actor's output, forwards Ctrl-C, and exits with the actor's outcome.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle

from paceline._control.controller import Controller
from paceline._control.recovery import load_history
from paceline._core import errors, settings
from paceline._engine.ray import detached
from paceline._engine.ray.cluster_monitor import ClusterLostError, ClusterMonitor
from paceline._engine.ray.code_bundle import CodeBundle
from paceline._engine.ray.connection import gcs_address
from paceline._engine.ray.node_code import apply_config, apply_environment, find_missing_trees
from paceline._storage.controller_registry import ControllerNote, DetachedOutcome
from paceline._storage.files import LocalFiles
from paceline._storage.run_location import RunLocation
from paceline.train.display.terminal import Terminal, make_terminal
from paceline.train.display.terminal_region import write_to
from paceline.train.driver import preflight
from paceline.train.driver.cluster_target import ClusterTarget
from paceline.train.driver.execution_target import Say
from paceline.train.driver.interrupts import SignalInterrupts
from paceline.train.driver.job import explain_unpicklable
from paceline.train.driver.run_directory import create_run_directory
from paceline.train.driver.run_metadata import collect_metadata
from paceline.train.driver.run_session import execute_run
from paceline.train.driver.run_spec import RunEnvironment, RunHooks, RunSpec
from paceline.train.result import Result, build_result


def fit_detached(spec: RunSpec) -> Result:
    """Drive a run on the cluster, follow it, and return its result or raise its error."""
    location = spec.run_config.location
    current_settings = settings.load()
    terminal = Terminal(location.layout, current_settings.verbosity, current_settings.report_notice_s)
    pickled = _pickle_spec(spec)
    registry = location.open_controller_registry()
    with preflight.clean_up_on_refusal(location.layout):
        create_run_directory(LocalFiles(), location.layout)
        token = registry.get_or_create_token()
    assert isinstance(spec.target, ClusterTarget)
    code_bundle = spec.target.code_bundle
    work = DetachedRun(token, code_bundle, pickled, settings.portable_variables())
    with contextlib.closing(ClusterMonitor(gcs_address(), current_settings.cluster_patience_s)) as monitor:
        try:
            name, pickled_work = actor_name(location), pickle.dumps(work)
            link = detached.start_detached(name, token, pickled_work, code_bundle.runtime_env, monitor)
            _announce_controller(link, location, terminal.say)
            follower = detached.DetachedFollower(link, echo_output, terminal.say, monitor)
            with _CtrlCForwarder(follower):
                outcome = follower.wait_for_outcome()
        except (detached.DetachedActorGoneError, ClusterLostError) as problem:
            store = location.open_run_store_for_reading()
            result = build_result(store, *load_history(store))
            note = registry.read_note() if isinstance(problem, detached.DetachedActorGoneError) else None
            ending = note.ended if note is not None else None
            if ending is None:
                result.status = "failed"
                raise errors.ControllerError(problem, result) from problem
            # The run had ended before the actor was lost, and this process could not receive the outcome.
            if ending.code == errors.TrainingInterrupt.EXIT_CODE:
                raise errors.TrainingInterrupt(ending.text, result) from problem
            if ending.code == errors.PreemptionError.EXIT_CODE:
                raise errors.PreemptionError(ending.text, result) from problem
            if ending.code:
                raise errors.TrainingFailedError(ending.text, result) from problem
            return result
    return unpack_outcome(outcome)


def find_controller(location: RunLocation, token: str, monitor: ClusterMonitor) -> detached.DetachedLink | None:
    """Return a link to the controller of a run, or None if there is none."""
    return detached.find_detached(actor_name(location), token, monitor)


def actor_name(location: RunLocation) -> str:
    """The name of the actor that drives a run."""
    uri = location.uri if location.address is not None else str(Path(location.uri).resolve())
    return f"{location.name}:{hashlib.sha256(uri.encode(errors='surrogatepass')).hexdigest()[:16]}"


def echo_output(stream: int, text: str) -> None:
    """Print a controller's output as if it ran here."""
    write_to(sys.stdout if stream == 1 else sys.stderr, text)


@dataclass(frozen=True)
class DetachedRun:
    """The entry point of the actor."""

    token: str
    code_bundle: CodeBundle
    pickled_spec: bytes
    """The pickled `RunSpec`; unpickled in the same environment as the script's."""
    variables: dict[str, str]

    def __call__(self, followers: detached.FollowerHub) -> bytes:
        return pack_outcome(lambda: self._drive(followers))

    def _drive(self, followers: detached.FollowerHub) -> Result:
        actor_config = self.code_bundle.config
        settings.adopt_variables(self.variables)
        apply_environment(actor_config)
        apply_config(actor_config, find_missing_trees(actor_config), self.code_bundle.data)
        spec: RunSpec = pickle.loads(self.pickled_spec)  # noqa: S301
        assert isinstance(spec.target, ClusterTarget)
        spec.target.code_bundle = self.code_bundle
        location = spec.run_config.location
        registry = location.open_controller_registry()
        if registry.read_token() != self.token:
            raise errors.StorageError(
                f"{location.uri} on {socket.gethostname()} differs from what the script sees\n\n"
                "hint: set RunConfig(storage_path=...) to storage that the nodes and the script share"
            )
        terminal = make_terminal(
            location.layout, spec.run_context.train_loop_config, verbosity=spec.run_config.verbosity
        )
        if followers.is_restarted:
            terminal.say(f"the controller restarted on {socket.gethostname()}")
        registry.write_note(ControllerNote(gcs_address()))
        environment = RunEnvironment(controller_id=followers.actor_id)
        hooks = RunHooks(make_interrupts=lambda controller: _FollowerInterrupts(controller, followers))
        try:
            result = execute_run(spec, terminal, environment, hooks)
        except errors.RunHeldError:
            raise  # Another driver decides how the run ends.
        except BaseException as error:
            outcome = DetachedOutcome(exit_code_for(error), str(error) or type(error).__name__)
            registry.write_note(ControllerNote(gcs_address(), outcome))
            raise
        registry.write_note(ControllerNote(gcs_address(), DetachedOutcome(0, "")))
        return result


class _FollowerInterrupts(SignalInterrupts):
    """Stop requests from followers; signals are not handled."""

    def __init__(self, controller: Controller, followers: detached.FollowerHub) -> None:
        super().__init__(controller)
        self._followers = followers

    def __enter__(self) -> None:
        self._followers.set_stop_handler(lambda now: self.on_ctrl_c(now=now))

    def __exit__(self, *_: object) -> None:
        self._followers.set_stop_handler(None)


class _CtrlCForwarder:
    """The first Ctrl-C requests a stop at the next report, the second a stop now; the third stops following."""

    def __init__(self, follower: detached.DetachedFollower) -> None:
        self._following = follower
        self._count = 0
        self._previous_handler: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGINT, self._handle_sigint)

    def __exit__(self, *_: object) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _handle_sigint(self, *_: object) -> None:
        self._count += 1
        if self._count > 2:
            raise KeyboardInterrupt
        self._following.ask_to_stop(now=self._count > 1)


def exit_code_for(error: BaseException) -> int:
    """The exit code of a script that does not catch this error."""
    if isinstance(error, errors.PreemptionError):
        return errors.PreemptionError.EXIT_CODE
    return errors.TrainingInterrupt.EXIT_CODE if isinstance(error, KeyboardInterrupt) else 1


def pack_outcome(act: Callable[[], Result]) -> bytes:
    """Call `act` and pickle its result or error, for the processes that wait for it."""
    try:
        return bytes(cloudpickle.dumps((act(), None, None)))
    except BaseException as error:  # noqa: BLE001
        if not isinstance(error, errors.PacelineError | KeyboardInterrupt):
            error.add_note(f"in the controller on {socket.gethostname()}:\n{traceback.format_exc()}")
        try:
            return bytes(cloudpickle.dumps((None, error, error.__cause__)))
        except Exception:  # noqa: BLE001
            return bytes(cloudpickle.dumps((None, errors.TrainingFailedError(str(error)), None)))


def unpack_outcome(outcome: bytes) -> Result:
    """Return the result of a packed outcome, or raise its error."""
    result, error, cause = pickle.loads(outcome)  # noqa: S301
    if error is not None:
        raise error from cause
    assert isinstance(result, Result)
    return result


def _pickle_spec(spec: RunSpec) -> bytes:
    _, _, backend = spec.job_parts
    try:
        # The function itself is in the pickled job; the actor never calls the one in the spec.
        assert isinstance(spec.target, ClusterTarget)
        target, metadata = spec.target.copy_for_actor(), collect_metadata(spec)
        parts = (_placeholder_function, None, backend)
        data: bytes = cloudpickle.dumps(replace(spec, job_parts=parts, target=target, metadata=metadata))
    except Exception as problem:
        sent = {
            "RunConfig(callbacks=...)": spec.run_config.callbacks,
            "RunConfig(storage_filesystem=...)": spec.run_config.storage_filesystem,
            "validation_config": spec.validation,
            "datasets": spec.datasets.plans if spec.datasets is not None else {},
            "resume_from_checkpoint": spec.initial_checkpoint,
        }
        path, reason = explain_unpicklable(sent, "something that goes with the trainer", problem)
        raise TypeError(
            f"cannot send {path} to the cluster for RunConfig(detached=True): {reason}\n\n"
            "hint: open connections, files and locks on first use, or run without detached=True"
        ) from problem
    if len(data) > detached.MAX_WORK_BYTES:
        raise ValueError(
            f"the function, its configuration and the datasets take {len(data) / 1e6:.0f} MB, but a detached run may "
            f"send at most {detached.MAX_WORK_BYTES / 1e6:.0f} MB to the cluster\n\n"
            "hint: load large objects inside train_loop_per_worker, from storage that the nodes share"
        )
    return data


def _placeholder_function() -> None:
    """Replaces the user's function in a spec sent to an actor."""


def _announce_controller(link: detached.DetachedLink, location: RunLocation, say: Say) -> None:
    state = "already running on the cluster: following it. Ctrl-C stops it; closing the terminal does not"
    if link.is_new:
        follow = f"`paceline attach {location.uri}` follows it again, Ctrl-C stops it"
        state = f"driven on the cluster and continues without this script; {follow}"
    say(f"run {location.name} is {state}")
