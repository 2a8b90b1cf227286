"""`paceline attach RUN`: follow a run that is driven on a cluster, or say what has become of it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline._commands import asking
from paceline._storage.home import Home

if TYPE_CHECKING:
    from paceline._storage.desk import Ended

NOT_FOLLOWED = 2
LEFT = 130


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    from paceline._core.errors import PacelineError

    try:
        with contextlib.redirect_stdout(sys.stderr) if asked.json else contextlib.nullcontext():
            code = _attached(asked)
        if asked.json and code != NOT_FOLLOWED:
            asking.tell_summary(Home.of_path(asked.run))
        return code
    except (PacelineError, OSError, ImportError, ValueError) as error:
        return _say(str(error), NOT_FOLLOWED)
    except KeyboardInterrupt:
        return _say(f"left; the run goes on, and `paceline attach {asked.run}` follows it again", LEFT)


def _parser() -> asking.Parser:
    parser = asking.Parser(
        "attach",
        "Follows a run of RunConfig(detached=True): prints what its controller has said and says, until it ends. "
        "Ctrl-C leaves it running.",
        "paceline attach /shared/runs/resnet --address 10.0.0.1:6379",
        codes="as of the run's own script, so 0 it is complete or was stopped, 1 it failed, 75 it was preempted; "
        "2 it cannot be followed, 130 Ctrl-C",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory or address: storage_path/name")
    parser.add_argument("--address", help="of the cluster (RAY_ADDRESS, else where the run was begun)")
    parser.add_argument("--stop", action="store_true", help="ask for a stop at the next report")
    parser.add_argument(
        "--json", action="store_true", help="when it has ended, print what came of it as JSON, and all else to stderr"
    )
    return parser


def _attached(asked: argparse.Namespace) -> int:
    from paceline._core import settings

    home = Home.of_path(asked.run)
    desk = home.desk()
    token, note = desk.token(), desk.note()
    if token is None or note is None:
        return _by_journal(asked.run, "was not detached, so there is nothing to attach to")
    if note.ended is not None:
        return _ended(asked.run, note.ended)
    from paceline._engine.ray.connect import connected, gcs_address
    from paceline._engine.ray.follow import Following, GoneError
    from paceline._engine.ray.presence import ClusterLostError, Presence
    from paceline.train.detached import code_of, link_to, unpacked, write

    chosen = settings.load()
    address = asked.address or chosen.ray_address or note.address
    try:
        connected(address)
    except ConnectionError:
        return _by_journal(asked.run, f"has no controller any more: no cluster answers at {address}")
    with contextlib.closing(Presence(gcs_address(), chosen.cluster_patience_s)) as presence:
        link = link_to(home, token, presence)
        if link is None:
            return _by_journal(asked.run, f"has no controller any more on the cluster at {address}")
        following = Following(link, write, _told, presence)
        if asked.stop:
            following.ask_to_stop(now=False)
        try:
            outcome = following.outcome()
        except (GoneError, ClusterLostError) as problem:
            note = desk.note()
            if note is not None and note.ended is not None:
                return _ended(asked.run, note.ended)
            return _by_journal(asked.run, f"cannot be followed: {problem}".partition("\n")[0])
    try:
        unpacked(outcome)
    except BaseException as error:  # noqa: BLE001  what a script would have ended with
        if code_of(error) == 1:
            _told(f"{type(error).__name__}: {error}")
        return code_of(error)
    return 0


def _ended(run: str, ended: Ended) -> int:
    if ended.code:
        return _say(f"the run has ended: {ended.text}", ended.code)
    return _by_journal(run, "was stopped", 0)


def _by_journal(run: str, why: str, code: int = NOT_FOLLOWED) -> int:
    """What is known of a run that nobody can be asked about; `why` follows the run's name where it is not complete."""
    from paceline._control.recover import history_of
    from paceline._storage.depot import DiskDepot
    from paceline._view.words import counted

    depot = Home.of_path(run).depot_to_read()
    if isinstance(depot, DiskDepot) and not depot.layout.root.is_dir():
        return _say(f"there is no run in {depot.uri}", NOT_FOLLOWED)
    found, _ = history_of(depot)
    if found.attempt == 0 and not found.checkpoints:
        return _say(f"there is no run in {depot.uri}: it has no journal, or an empty one", NOT_FOLLOWED)
    if found.is_trained:
        return _say(f"run {depot.layout.root.name} is complete after {counted(found.num_reports, 'report')}", 0)
    since = f"{found.latest.name} (report {found.latest.seq})" if found.latest is not None else "the beginning"
    return _say(
        f"run {depot.layout.root.name} has made {counted(found.num_reports, 'report')} and {why}\n\n"
        "hint: run its script again with the same RunConfig(storage_path=..., name=...) "
        f"to continue from {since}",
        code,
    )


def _told(text: str) -> None:
    print(f"paceline: {text}", file=sys.stderr, flush=True)


def _say(text: str, code: int) -> int:
    _told(text)
    return code
