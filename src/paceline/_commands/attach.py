"""`paceline attach RUN`: follow a run that is driven on a cluster, or print how it ended."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline._commands import cli_args, cli_output
from paceline._storage.run_location import RunLocation

if TYPE_CHECKING:
    from paceline._storage.controller_registry import DetachedOutcome

NOT_FOLLOWED = 2
LEFT = 130


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "attach",
        "Follows a run of RunConfig(detached=True): prints the controller's past and new output until it ends. "
        "Ctrl-C leaves it running.",
        "paceline attach /shared/runs/resnet --address 10.0.0.1:6379",
        codes="as of the run's own script: 0 finished, 1 failed, 75 preempted, 130 stopped; "
        "2 it cannot be followed, 130 Ctrl-C",
        runs=(),
        json="when it ends, print its outcome as JSON, and everything else to stderr",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory or address: storage_path/name")
    parser.add_argument("--address", help="address of the cluster (RAY_ADDRESS, else where the run was started)")
    parser.add_argument("--stop", action="store_true", help="request a stop at the next report")
    args = parser.parse_args(arguments)
    from paceline._core.errors import PacelineError

    try:
        with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
            code = _attach_to_run(args)
        if args.json and code != NOT_FOLLOWED:
            cli_output.print_json(cli_args.open_reader(RunLocation.from_path(args.run)).summary())
        return code
    except (PacelineError, OSError, ImportError, ValueError) as error:
        return cli_output.print_message(str(error), NOT_FOLLOWED)
    except KeyboardInterrupt:
        text = f"detached; the run continues, and `paceline attach {args.run}` follows it again"
        return cli_output.print_message(text, LEFT)


def _attach_to_run(args: argparse.Namespace) -> int:
    from paceline._core import settings

    location = RunLocation.from_path(args.run)
    desk = location.open_controller_registry()
    token, note = desk.read_token(), desk.read_note()
    if token is None or note is None:
        return _print_journal_status(args.run, "was not detached, so there is nothing to attach to")
    if note.ended is not None:
        return _print_ending(args.run, note.ended)
    from paceline._engine.ray.cluster_monitor import ClusterLostError, ClusterMonitor
    from paceline._engine.ray.connection import connect_to_cluster, gcs_address
    from paceline._engine.ray.detached import DetachedActorGoneError, DetachedFollower
    from paceline.train.driver.detached import echo_output, exit_code_for, find_controller, unpack_outcome

    chosen = settings.load()
    address = args.address or chosen.ray_address or note.address
    try:
        connect_to_cluster(address)
    except ConnectionError:
        return _print_journal_status(args.run, f"no longer has a controller: no cluster answers at {address}")
    with contextlib.closing(ClusterMonitor(gcs_address(), chosen.cluster_patience_s)) as presence:
        link = find_controller(location, token, presence)
        if link is None:
            return _print_journal_status(args.run, f"no longer has a controller on the cluster at {address}")
        following = DetachedFollower(link, echo_output, cli_output.print_line, presence)
        if args.stop:
            following.ask_to_stop(now=False)
        try:
            outcome = following.wait_for_outcome()
        except (DetachedActorGoneError, ClusterLostError) as problem:
            note = desk.read_note()
            if note is not None and note.ended is not None:
                return _print_ending(args.run, note.ended)
            return _print_journal_status(args.run, f"cannot be followed: {problem}".partition("\n")[0])
    try:
        unpack_outcome(outcome)
    except BaseException as error:  # noqa: BLE001  what a script would have ended with
        if exit_code_for(error) == 1:
            cli_output.print_line(f"{type(error).__name__}: {error}")
        return exit_code_for(error)
    return 0


def _print_ending(run: str, ended: DetachedOutcome) -> int:
    if ended.code:
        return cli_output.print_message(f"the run has ended: {ended.text}", ended.code)
    return _print_journal_status(run, "was stopped", 0)


def _print_journal_status(run: str, why: str, code: int = NOT_FOLLOWED) -> int:
    """Print what the journal says about a run without a reachable controller; `why`, if it has not finished."""
    from paceline._control.recovery import load_history
    from paceline._storage.run_store import DiskRunStore
    from paceline._view.formatting import format_count

    run_store = RunLocation.from_path(run).open_run_store_for_reading()
    missing = f"there is no run in {run_store.uri}"
    if isinstance(run_store, DiskRunStore) and not run_store.layout.root.is_dir():
        return cli_output.print_message(missing, NOT_FOLLOWED)
    run_state, _ = load_history(run_store)
    if run_state.attempt == 0 and not run_state.checkpoints:
        return cli_output.print_message(f"{missing}: it has no journal, or an empty one", NOT_FOLLOWED)
    name, reports = run_store.layout.root.name, format_count(run_state.num_reports, "report")
    if run_state.is_trained:
        return cli_output.print_message(f"run {name} finished after {reports}", 0)
    latest = run_state.latest
    since = f"{latest.name} (report {latest.seq})" if latest is not None else "the beginning"
    return cli_output.print_message(
        f"run {name} has made {reports} and {why}\n\n"
        f"hint: run its script again with the same RunConfig(storage_path=..., name=...) to continue from {since}",
        code,
    )
