"""A run that is driven by an actor on the cluster: sent there, followed from here, found again by who comes later.

What is sent is all that `fit()` would have driven here. The actor drives it with the same journal and lease; this
process prints what it says, passes Ctrl-C on, and ends as it does.
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
from paceline._control.recover import history_of
from paceline._core import settings
from paceline._core.errors import (
    ControllerError,
    PacelineError,
    PreemptionError,
    RunHeldError,
    StorageError,
    TrainingFailedError,
)
from paceline._engine.ray.connect import gcs_address
from paceline._engine.ray.detached import MAX_BYTES, Followers
from paceline._engine.ray.follow import Following, GoneError, Link, begun, found
from paceline._engine.ray.presence import ClusterLostError, Presence
from paceline._engine.ray.travel import Luggage, lacking, settle, settle_environment
from paceline._storage.desk import Desk, Ended, Note
from paceline._storage.files import LocalFiles
from paceline._storage.home import Home
from paceline.train import preflight
from paceline.train.carried import culprit
from paceline.train.cluster import ClusterSite
from paceline.train.described import description
from paceline.train.drive import Asked, Seams, make_root, played
from paceline.train.result import Result, result_of
from paceline.train.terminal import Terminal, terminal_of

Say = Callable[[str], None]


def fitted_elsewhere(asked: Asked) -> Result:
    """Have a run driven on the cluster, follow it, and return or raise what comes of it."""
    home = asked.run_config.home
    chosen = settings.load()
    terminal = Terminal(home.layout, chosen.verbosity, chosen.report_notice_s)
    pickled = _pickled(asked)
    desk = home.desk()
    with preflight.undone_if_refused(home.layout):
        make_root(LocalFiles(), home.layout)
        token = desk.made_token()
    assert isinstance(asked.site, ClusterSite)
    luggage = asked.site.luggage
    work = DetachedRun(token, luggage, pickled, settings.variables_for_elsewhere())
    with contextlib.closing(Presence(gcs_address(), chosen.cluster_patience_s)) as presence:
        try:
            link = begun(name_of(home), token, pickle.dumps(work), luggage.runtime_env, presence)
            _say_whose(link, home, terminal.say)
            following = Following(link, write, terminal.say, presence)
            with _CtrlC(following):
                outcome = following.outcome()
        except (GoneError, ClusterLostError) as problem:
            depot = home.depot_to_read()
            reached = result_of(depot, *history_of(depot))
            ended = _ended(desk) if isinstance(problem, GoneError) else None
            if ended is None:
                raise ControllerError(problem, reached) from problem
            # It had ended before it was lost, while this process could not hear of it.
            if ended.code:
                raise TrainingFailedError(ended.text, reached) from problem
            return reached
    return unpacked(outcome)


def _ended(desk: Desk) -> Ended | None:
    note = desk.note()
    return note.ended if note is not None else None


def link_to(home: Home, token: str, presence: Presence) -> Link | None:
    """The controller of a run, if it is there."""
    return found(name_of(home), token, presence)


def name_of(home: Home) -> str:
    """Of the actor that drives a run."""
    uri = home.uri if home.address is not None else str(Path(home.uri).resolve())
    return f"{home.name}:{hashlib.sha256(uri.encode(errors='surrogatepass')).hexdigest()[:16]}"


def write(stream: int, text: str) -> None:
    """What a controller printed, as if it were here."""
    out = sys.stdout if stream == 1 else sys.stderr
    out.write(text)
    out.flush()


@dataclass(frozen=True)
class DetachedRun:
    """What the actor runs."""

    token: str
    luggage: Luggage
    asked: bytes
    """What is to be driven, pickled: it is unpickled in the surroundings that the script had."""
    variables: dict[str, str]

    def __call__(self, followers: Followers) -> bytes:
        return packed(lambda: self._driven(followers))

    def _driven(self, followers: Followers) -> Result:
        kit = self.luggage.kit
        settings.take_from_elsewhere(self.variables)
        settle_environment(kit)
        settle(kit, lacking(kit), self.luggage.data)
        asked: Asked = pickle.loads(self.asked)  # noqa: S301  from the script, as the actor's class itself
        assert isinstance(asked.site, ClusterSite)
        asked.site.luggage = self.luggage
        home = asked.run_config.home
        desk = home.desk()
        if desk.token() != self.token:
            raise StorageError(
                f"{home.uri} on {socket.gethostname()}, where the run is driven, is not what the script sees there\n\n"
                "hint: set RunConfig(storage_path=...) to storage that the nodes and the script share"
            )
        terminal = terminal_of(home.layout, asked.about.train_loop_config)
        if followers.again:
            terminal.say(f"the controller was lost and is back, on {socket.gethostname()}")
        desk.leave(Note(gcs_address()))
        seams = Seams(interrupts=lambda controller: _Requests(controller, followers), controller=followers.actor_id)
        try:
            result = played(asked, terminal, seams)
        except RunHeldError:
            raise  # It is another driver's to say how the run ends.
        except BaseException as error:
            desk.leave(Note(gcs_address(), Ended(code_of(error), str(error) or type(error).__name__)))
            raise
        desk.leave(Note(gcs_address(), Ended(0, "")))
        return result


class _Requests:
    """Requests of followers to stop."""

    def __init__(self, controller: Controller, followers: Followers) -> None:
        self.count = 0
        self._controller = controller
        self._followers = followers

    def __enter__(self) -> None:
        self._followers.heard_by(lambda now: self.asked(now=now))

    def __exit__(self, *_: object) -> None:
        self._followers.heard_by(None)

    def asked(self, *, now: bool) -> None:
        self.count = max(self.count, 2 if now else 1)
        self._controller.request_stop(now=now)


class _CtrlC:
    """Ctrl-C once asks the controller for a stop at the next report, twice for one now; a third time leaves it."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._count = 0
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._take)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _take(self, *_: object) -> None:
        self._count += 1
        if self._count > 2:
            raise KeyboardInterrupt
        self._following.ask_to_stop(now=self._count > 1)


def code_of(error: BaseException | None) -> int:
    """What a script exits with that lets this pass."""
    if error is None:
        return 0
    if isinstance(error, PreemptionError):
        return PreemptionError.EXIT_CODE
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def packed(act: Callable[[], Result]) -> bytes:
    """What came of it, to be sent to those who wait for it."""
    try:
        return _dumped((act(), None, None))
    except BaseException as error:  # noqa: BLE001  raised again by those who wait
        if not isinstance(error, PacelineError | KeyboardInterrupt):
            error.add_note(f"in the controller on {socket.gethostname()}:\n{traceback.format_exc()}")
        try:
            return _dumped((None, error, error.__cause__))
        except Exception:  # noqa: BLE001  whatever of the user's is in it; its text stands in
            return _dumped((None, TrainingFailedError(str(error)), None))


def unpacked(outcome: bytes) -> Result:
    """The same here: returned or raised."""
    result, error, cause = pickle.loads(outcome)  # noqa: S301  from the controller's memory, not storage
    if error is not None:
        raise error from cause
    assert isinstance(result, Result)
    return result


def _dumped(value: Any) -> bytes:
    data: bytes = cloudpickle.dumps(value)
    return data


def _pickled(asked: Asked) -> bytes:
    _, _, backend = asked.parts
    try:
        # The function itself is in the job, and nobody calls it there.
        assert isinstance(asked.site, ClusterSite)
        told = description(asked)
        data = _dumped(replace(asked, parts=(_unused, None, backend), site=asked.site.moved(), description=told))
    except Exception as problem:
        data_plans = asked.data.plans if asked.data is not None else {}
        found = culprit(
            {
                "RunConfig(callbacks=...)": asked.run_config.callbacks,
                "RunConfig(storage_filesystem=...)": asked.run_config.storage_filesystem,
                "validation_config": asked.validation,
                "datasets": data_plans,
                "resume_from_checkpoint": asked.initial,
            }
        )
        path = found.path if found is not None else "something that goes with the trainer"
        reason = found.problem if found is not None else problem
        raise TypeError(
            f"{path} cannot be sent to the cluster, where RunConfig(detached=True) has the run driven: "
            f"{type(reason).__name__}: {reason}\n\n"
            "hint: open connections, files and locks when they are first used, or drive the run from this script"
        ) from problem
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"the function, its configuration and the datasets are {len(data) / 1e6:.0f} MB, and a detached run may "
            f"send {MAX_BYTES / 1e6:.0f} MB to the cluster\n\n"
            "hint: load large objects inside train_loop_per_worker, from storage that the nodes share"
        )
    return data


def _unused() -> None:
    """In the place of the function."""


def _say_whose(link: Link, home: Home, say: Say) -> None:
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
