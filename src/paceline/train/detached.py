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
from paceline._core import settings
from paceline._core.errors import (
    ControllerError,
    PacelineError,
    PreemptionError,
    RunHeldError,
    StorageError,
    TrainingFailedError,
)
from paceline._engine.ray.cluster_monitor import ClusterLostError, ClusterMonitor
from paceline._engine.ray.code_bundle import CodeBundle, apply_config, apply_environment, find_missing_trees
from paceline._engine.ray.connection import gcs_address
from paceline._engine.ray.detached_actor import MAX_WORK_BYTES, FollowerHub
from paceline._engine.ray.detached_client import (
    DetachedActorGoneError,
    DetachedFollower,
    DetachedLink,
    find_detached,
    start_detached,
)
from paceline._storage.controller_registry import ControllerNote, ControllerRegistry, DetachedOutcome
from paceline._storage.files import LocalFiles
from paceline._storage.run_location import RunLocation
from paceline.train import preflight
from paceline.train.cluster_target import ClusterTarget
from paceline.train.result import Result, build_result
from paceline.train.run_driver import RunEnvironment, RunSpec, create_run_directory, execute_run
from paceline.train.run_metadata import collect_metadata
from paceline.train.terminal import Terminal, make_terminal
from paceline.train.unpicklable import find_unpicklable

Say = Callable[[str], None]


def fit_detached(asked: RunSpec) -> Result:
    """Drive a run on the cluster, follow it, and return its result or raise its error."""
    home = asked.run_config.home
    chosen = settings.load()
    terminal = Terminal(home.layout, chosen.verbosity, chosen.report_notice_s)
    pickled = _pickle_spec(asked)
    desk = home.open_controller_registry()
    with preflight.clean_up_on_refusal(home.layout):
        create_run_directory(LocalFiles(), home.layout)
        token = desk.get_or_create_token()
    assert isinstance(asked.target, ClusterTarget)
    luggage = asked.target.code_bundle
    work = DetachedRun(token, luggage, pickled, settings.portable_variables())
    with contextlib.closing(ClusterMonitor(gcs_address(), chosen.cluster_patience_s)) as presence:
        try:
            link = start_detached(actor_name(home), token, pickle.dumps(work), luggage.runtime_env, presence)
            _announce_controller(link, home, terminal.say)
            following = DetachedFollower(link, echo_output, terminal.say, presence)
            with _CtrlCForwarder(following):
                outcome = following.wait_for_outcome()
        except (DetachedActorGoneError, ClusterLostError) as problem:
            depot = home.open_run_store_for_reading()
            reached = build_result(depot, *load_history(depot))
            ended = _read_ending(desk) if isinstance(problem, DetachedActorGoneError) else None
            if ended is None:
                raise ControllerError(problem, reached) from problem
            # The run had ended before the actor was lost, and this process could not receive the outcome.
            if ended.code:
                raise TrainingFailedError(ended.text, reached) from problem
            return reached
    return unpack_outcome(outcome)


def _read_ending(desk: ControllerRegistry) -> DetachedOutcome | None:
    note = desk.read_note()
    return note.ended if note is not None else None


def find_controller(home: RunLocation, token: str, presence: ClusterMonitor) -> DetachedLink | None:
    """Return a link to the controller of a run, or None if there is none."""
    return find_detached(actor_name(home), token, presence)


def actor_name(home: RunLocation) -> str:
    """The name of the actor that drives a run."""
    uri = home.uri if home.address is not None else str(Path(home.uri).resolve())
    return f"{home.name}:{hashlib.sha256(uri.encode(errors='surrogatepass')).hexdigest()[:16]}"


def echo_output(stream: int, text: str) -> None:
    """Print a controller's output as if it ran here."""
    out = sys.stdout if stream == 1 else sys.stderr
    out.write(text)
    out.flush()


@dataclass(frozen=True)
class DetachedRun:
    """The entry point of the actor."""

    token: str
    code_bundle: CodeBundle
    pickled_spec: bytes
    """The pickled `RunSpec`; unpickled in the same environment as the script's."""
    variables: dict[str, str]

    def __call__(self, followers: FollowerHub) -> bytes:
        return pack_outcome(lambda: self._drive(followers))

    def _drive(self, followers: FollowerHub) -> Result:
        kit = self.code_bundle.config
        settings.adopt_variables(self.variables)
        apply_environment(kit)
        apply_config(kit, find_missing_trees(kit), self.code_bundle.data)
        asked: RunSpec = pickle.loads(self.pickled_spec)  # noqa: S301  from the script, as the actor's class itself
        assert isinstance(asked.target, ClusterTarget)
        asked.target.code_bundle = self.code_bundle
        home = asked.run_config.home
        desk = home.open_controller_registry()
        if desk.read_token() != self.token:
            raise StorageError(
                f"{home.uri} on {socket.gethostname()}, where the run is driven, is not what the script sees there\n\n"
                "hint: set RunConfig(storage_path=...) to storage that the nodes and the script share"
            )
        terminal = make_terminal(home.layout, asked.run_context.train_loop_config)
        if followers.is_restarted:
            terminal.say(f"the controller was lost and is back, on {socket.gethostname()}")
        desk.write_note(ControllerNote(gcs_address()))
        seams = RunEnvironment(
            make_interrupts=lambda controller: _FollowerInterrupts(controller, followers),
            controller_id=followers.actor_id,
        )
        try:
            result = execute_run(asked, terminal, seams)
        except RunHeldError:
            raise  # Another driver decides how the run ends.
        except BaseException as error:
            desk.write_note(
                ControllerNote(gcs_address(), DetachedOutcome(exit_code_for(error), str(error) or type(error).__name__))
            )
            raise
        desk.write_note(ControllerNote(gcs_address(), DetachedOutcome(0, "")))
        return result


class _FollowerInterrupts:
    """Stop requests from followers."""

    def __init__(self, controller: Controller, followers: FollowerHub) -> None:
        self.count = 0
        self._controller = controller
        self._followers = followers

    def __enter__(self) -> None:
        self._followers.set_stop_handler(lambda now: self.on_stop_request(now=now))

    def __exit__(self, *_: object) -> None:
        self._followers.set_stop_handler(None)

    def on_stop_request(self, *, now: bool) -> None:
        self.count = max(self.count, 2 if now else 1)
        self._controller.request_stop(now=now)


class _CtrlCForwarder:
    """The first Ctrl-C requests a stop at the next report, the second a stop now; the third stops following."""

    def __init__(self, following: DetachedFollower) -> None:
        self._following = following
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


def exit_code_for(error: BaseException | None) -> int:
    """The exit code of a script that does not catch this error."""
    if error is None:
        return 0
    if isinstance(error, PreemptionError):
        return PreemptionError.EXIT_CODE
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def pack_outcome(act: Callable[[], Result]) -> bytes:
    """Call `act` and pickle its result or error, for the processes that wait for it."""
    try:
        return _pickle_value((act(), None, None))
    except BaseException as error:  # noqa: BLE001  raised again by those who wait
        if not isinstance(error, PacelineError | KeyboardInterrupt):
            error.add_note(f"in the controller on {socket.gethostname()}:\n{traceback.format_exc()}")
        try:
            return _pickle_value((None, error, error.__cause__))
        except Exception:  # noqa: BLE001  whatever of the user's is in it; its text stands in
            return _pickle_value((None, TrainingFailedError(str(error)), None))


def unpack_outcome(outcome: bytes) -> Result:
    """Return the result of a packed outcome, or raise its error."""
    result, error, cause = pickle.loads(outcome)  # noqa: S301  from the controller's memory, not storage
    if error is not None:
        raise error from cause
    assert isinstance(result, Result)
    return result


def _pickle_value(value: Any) -> bytes:
    data: bytes = cloudpickle.dumps(value)
    return data


def _pickle_spec(asked: RunSpec) -> bytes:
    _, _, backend = asked.job_parts
    try:
        # The function itself is in the pickled job; the actor never calls the one in the spec.
        assert isinstance(asked.target, ClusterTarget)
        told = collect_metadata(asked)
        data = _pickle_value(
            replace(
                asked,
                job_parts=(_placeholder_function, None, backend),
                target=asked.target.copy_for_actor(),
                metadata=told,
            )
        )
    except Exception as problem:
        data_plans = asked.datasets.plans if asked.datasets is not None else {}
        found = find_unpicklable(
            {
                "RunConfig(callbacks=...)": asked.run_config.callbacks,
                "RunConfig(storage_filesystem=...)": asked.run_config.storage_filesystem,
                "validation_config": asked.validation,
                "datasets": data_plans,
                "resume_from_checkpoint": asked.initial_checkpoint,
            }
        )
        path = found.path if found is not None else "something that goes with the trainer"
        reason = found.problem if found is not None else problem
        raise TypeError(
            f"{path} cannot be sent to the cluster, where RunConfig(detached=True) has the run driven: "
            f"{type(reason).__name__}: {reason}\n\n"
            "hint: open connections, files and locks when they are first used, or drive the run from this script"
        ) from problem
    if len(data) > MAX_WORK_BYTES:
        raise ValueError(
            f"the function, its configuration and the datasets are {len(data) / 1e6:.0f} MB, and a detached run may "
            f"send {MAX_WORK_BYTES / 1e6:.0f} MB to the cluster\n\n"
            "hint: load large objects inside train_loop_per_worker, from storage that the nodes share"
        )
    return data


def _placeholder_function() -> None:
    """Replaces the user's function in a spec sent to an actor."""


def _announce_controller(link: DetachedLink, home: RunLocation, say: Say) -> None:
    if link.is_new:
        say(
            f"run {home.name} is handed to a controller on the cluster, and goes on when this script is gone; "
            f"`paceline attach {home.uri}` follows it again, Ctrl-C stops it"
        )
    else:
        say(
            f"run {home.name} is under way, driven on the cluster: following it, nothing new is begun. "
            "Ctrl-C stops it; closing the terminal does not"
        )
