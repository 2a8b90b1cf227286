"""`paceline prune [PATH]`: show what old runs hold, and remove what they left behind, or with `--runs` all of them.

Nothing is removed without `--yes`, and never anything of a run that somebody drives: each removal first acquires the
run's lease. A run is removed by one rename, so an interrupted removal leaves no half of it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from paceline._commands import cli_args, cli_output, searches
from paceline._core import settings
from paceline._storage.run_layout import MANIFEST
from paceline._storage.run_location import RunLocation, is_remote, join_storage_path

if TYPE_CHECKING:
    from paceline._view.model import Summary

FINE, NOT_REMOVED = 0, 1
_MIN_SPOOL_AGE_S = 3600.0
"""The driver of a live run writes to its spool every few seconds."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_REMOVED_PREFIX = ".paceline-removed-"

Removal = Literal["", "leftovers", "all"]


class Holding(msgspec.Struct, frozen=True):
    """What one run, search or spool holds on storage, and what is to be removed of it."""

    id: str
    name: str
    kind: str
    state: str
    path: str
    age_s: float
    num_bytes: int
    leftover_bytes: int
    removes: Removal = ""
    problem: str = ""
    """Why it is kept, or could not be removed."""


def main(arguments: Sequence[str]) -> int:
    from paceline._view.model import ENDED

    parser = cli_args.CommandParser(
        "prune",
        """Shows how much space runs take, and removes the leftovers of runs that ended long ago: staged and deleted
        files, and spools of runs in stores. With --runs it removes the runs themselves. Without --yes it only shows
        what it would do.""",
        "paceline prune --older-than 7d",
        "paceline prune --runs --state failed --older-than 90d --yes",
        codes="0 fine, 1 something could not be removed, 2 bad usage or not found",
        runs=(),
    )
    add = parser.add_argument
    add("path", nargs="?", metavar="PATH", help="a directory or an address (the storage path)")
    about = "only what has not changed for so long, as in 12h or 30d (30d)"
    add("--older-than", type=parse_age, default=parse_age("30d"), metavar="AGE", help=about)
    about = "only runs in this state, and no spools; may be repeated"
    add("--state", action="append", choices=sorted({*ENDED, "lost"}), metavar="STATE", help=about)
    add("--runs", action="store_true", help="remove whole runs, with their checkpoints")
    add("--yes", action="store_true", help="remove it")
    args = parser.parse_args(arguments)
    root = cli_args.resolve_root(args.path)
    found = [*_find_runs(root, args), *(() if args.state else _find_spools(args.older_than))]
    if args.yes:
        found = [_remove(root, holding) if holding.removes else holding for holding in found]
        if not is_remote(root):
            for path in Path(root).expanduser().glob(f"{_REMOVED_PREFIX}*"):  # Of an interrupted removal.
                shutil.rmtree(path)
    if args.json:
        cli_output.print_json({"found": found, "done": args.yes})
    else:
        _print_holdings(root, found, is_done=args.yes)
    return NOT_REMOVED if any(holding.removes and holding.problem for holding in found) else FINE


def parse_age(text: str) -> float:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a number with a unit, such as 12h or 30d, got {text!r}")
    return int(match[1]) * float(_SECONDS[match[2]])


def _find_runs(root: str, args: argparse.Namespace) -> Iterator[Holding]:
    summaries = searches.read_listing(root).summaries()
    for summary in summaries:
        if summary.kind == "trial":
            continue  # Goes and stays with its search.
        location = _locate(root, summary.id)
        num_bytes, leftover_bytes = _measure(location)
        holding = Holding(
            id=summary.id,
            name=summary.id if summary.id != "." else summary.name,
            kind=summary.kind,
            state=summary.state,
            path=summary.path,
            age_s=max(0.0, time.time() - max(summary.began_at, summary.updated_at)),
            num_bytes=num_bytes,
            leftover_bytes=leftover_bytes,
        )
        if args.state and summary.state not in args.state:
            continue
        trials = [_locate(root, trial.id) for trial in summaries if trial.search == summary.id]
        yield _decide(holding, summary, [location, *trials], args)


def _decide(holding: Holding, summary: Summary, places: Sequence[RunLocation], args: argparse.Namespace) -> Holding:
    from paceline._view.model import ENDED
    from paceline._view.run_reader import Liveness

    replace = msgspec.structs.replace
    removes: Removal = "all" if args.runs else "leftovers"
    if not summary.updated_at:
        return replace(holding, problem="cannot be read")
    if summary.state not in (*ENDED, "lost") or any(Liveness(place).is_held() for place in places):
        return replace(holding, problem="in use")
    if holding.age_s < args.older_than or (removes == "leftovers" and not holding.leftover_bytes):
        return holding
    return replace(holding, removes=removes)


def _find_spools(older_than_s: float) -> Iterator[Holding]:
    """Find what runs in stores have left on this machine."""
    for path in sorted(settings.spool_root().glob("*/*/")):
        changed_at = max((status.st_mtime for status in _walk(path)), default=path.stat().st_mtime)
        age_s, num_bytes = max(0.0, time.time() - changed_at), _disk_usage(path)
        is_old = age_s >= max(older_than_s, _MIN_SPOOL_AGE_S)
        removes: Removal = "all" if is_old else ""
        yield Holding("", path.name, "spool", "", str(path), age_s, num_bytes, num_bytes, removes)


def _remove(root: str, holding: Holding) -> Holding:
    from paceline._core.errors import PacelineError

    try:
        if holding.kind == "spool":
            shutil.rmtree(holding.path)
        elif holding.removes == "all":
            _remove_run(_locate(root, holding.id))
        else:
            _remove_leftovers(_locate(root, holding.id))
    except (PacelineError, OSError) as error:
        return msgspec.structs.replace(holding, problem=str(error).partition("\n")[0])
    return holding


def _remove_leftovers(location: RunLocation) -> None:
    """Open the run as its next driver would, which removes what was not committed or is to be deleted."""
    from paceline.train.driver.run_directory import open_run
    from paceline.train.driver.run_spec import RunEnvironment

    with open_run(location, RunEnvironment(), cli_output.print_error):
        pass


def _remove_run(location: RunLocation) -> None:
    from paceline._core.system import SystemClock
    from paceline._storage.files import LocalFiles
    from paceline._storage.lease import acquire_lease

    # Never released: the lease goes with the run.
    acquire_lease(
        location.open_lease_store(), ttl_s=settings.load().lease_ttl_s, clock=SystemClock(), say=cli_output.print_error
    )
    if location.address is not None:
        store = location.open_store()
        keys = [entry.key for entry in store.list_entries()]
        # Manifests first, so that no half of a checkpoint is seen; the lease last.
        for key in sorted(keys, key=lambda key: (key == "lease.json", not key.endswith(f"/{MANIFEST}"))):
            store.delete(key)
        LocalFiles().remove_tree(location.layout.root)
        return
    root = location.layout.root
    if root.is_symlink():
        raise OSError(f"{root} is a symbolic link; not removed")
    removed = root.with_name(f"{_REMOVED_PREFIX}{os.urandom(4).hex()}")
    root.rename(removed)
    LocalFiles().sync_dir(removed.parent)
    shutil.rmtree(removed)


def _locate(root: str, id: str) -> RunLocation:
    return RunLocation.from_path(root if id == "." else join_storage_path(root, id))


def _measure(location: RunLocation) -> tuple[int, int]:
    """Return the size of a run and of what is left over in it."""
    if location.address is not None:
        return sum(entry.size for entry in location.open_store().list_entries()), 0
    layout = location.layout
    return _disk_usage(layout.root), _disk_usage(layout.staging) + _disk_usage(layout.trash)


def _disk_usage(path: Path) -> int:
    return sum(status.st_blocks * 512 for status in _walk(path))


def _walk(path: Path) -> Iterator[os.stat_result]:
    for parent, _, names in os.walk(path):
        for name in names:
            try:
                yield os.lstat(os.path.join(parent, name))
            except FileNotFoundError:
                continue  # Somebody works there.


def _print_holdings(root: str, found: Sequence[Holding], *, is_done: bool) -> None:
    from paceline._view import formatting

    if not found:
        print(f"no runs in {cli_output.escape_line(root)}")
        return
    rows = [("NAME", "STATE", "UNCHANGED", "SIZE", "LEFTOVERS", "")]
    for holding in found:
        what = {"": "", "leftovers": "leftovers", "all": holding.kind}[holding.removes]
        verb = "kept: " + holding.problem if holding.problem else f"{'removed' if is_done else 'would remove'} {what}"
        sizes = (formatting.size(holding.num_bytes), formatting.size(holding.leftover_bytes))
        state = holding.state or holding.kind
        note = verb if holding.removes or holding.problem else ""
        rows.append((holding.name, state, formatting.duration(holding.age_s), *sizes, note))
    print(cli_output.format_table(rows, right=(2, 3, 4), states=(1,), within=cli_output.terminal_width()))
    removed = [each for each in found if each.removes and not each.problem]
    freed = formatting.size(sum(e.num_bytes if e.removes == "all" else e.leftover_bytes for e in removed))
    if is_done or not removed:
        print(f"{freed} freed" if removed else "nothing to remove")
    else:
        print(f"would free {freed}; --yes does it")
