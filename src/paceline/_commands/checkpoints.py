"""`paceline checkpoints RUN`: list the checkpoints of a run, verify their files, export one, or prune old ones."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation
    from paceline._view.model import ShownCheckpoint

FINE, BROKEN, REFUSED = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "checkpoints",
        "Lists the checkpoints of a run, on disk or in a store. Only --prune changes anything.",
        "paceline checkpoints resnet --verify",
        "paceline checkpoints resnet --export best ./best-model",
        "paceline checkpoints resnet --prune --keep 3 --yes",
        codes="0 fine, 1 a checkpoint is broken, 2 bad usage, not found or held by a driver",
    )
    act = parser.add_mutually_exclusive_group()
    act.add_argument("--verify", action="store_true", help="read every file, and compare size and hash")
    about = "verify one and copy it to a new directory; NAME may be latest or best"
    act.add_argument("--export", nargs=2, metavar=("NAME", "DIR"), help=about)
    act.add_argument("--prune", action="store_true", help="remove all but the newest, the best and pinned ones")
    parser.add_argument("--keep", type=cli_args.parse_positive_int, metavar="N", help="with --prune: how many to keep")
    about = "with --prune: delete; without it, only print what would be deleted"
    parser.add_argument("--yes", action="store_true", help=about)
    args = parser.parse_args(arguments)
    if args.keep is not None and not args.prune:
        parser.error("--keep requires --prune")
    if args.prune and args.keep is None:
        parser.error("--prune requires --keep N")
    location = cli_args.locate_run(args.run)
    if args.export is not None:
        return _export_one(location, args.export[0], args.export[1], args.json)
    if args.prune:
        return _prune_checkpoints(location, args)
    return _verify_all(location, args.json) if args.verify else _list_checkpoints(location, args.json)


def read_checkpoints(location: RunLocation) -> tuple[ShownCheckpoint, ...]:
    return cli_args.open_reader(location).snapshot().checkpoints


def _list_checkpoints(location: RunLocation, as_json: bool) -> int:
    checkpoints = [checkpoint for checkpoint in read_checkpoints(location) if checkpoint.kept]
    if as_json:
        return cli_output.print_json(checkpoints)
    empty = f"{cli_output.escape_line(location.name)} has no checkpoints"
    print(format_checkpoints(checkpoints) if checkpoints else empty)
    return FINE


def format_checkpoints(checkpoints: Sequence[ShownCheckpoint], indent: str = "", within: int | None = None) -> str:
    from paceline._view import formatting

    rows = [("NAME", "REPORT", "SIZE", "SAVED", "", "METRICS")]
    for checkpoint in checkpoints:
        marks = [mark for mark, holds in (("latest", checkpoint.is_latest), ("best", checkpoint.is_best)) if holds]
        marks += [checkpoint.status.lower()] if checkpoint.status not in ("", "COMMITTED", "VALIDATED") else []
        at = formatting.when(checkpoint.at) if checkpoint.at else ""
        metrics = formatting.values(dict(list(checkpoint.metrics.items())[:3]))
        size = formatting.size(checkpoint.num_bytes)
        rows.append((checkpoint.name, str(checkpoint.seq), size, at, ",".join(marks), metrics))
    return cli_output.format_table(rows, right=(1, 2), indent=indent, within=within or cli_output.terminal_width())


def _verify_all(location: RunLocation, as_json: bool) -> int:
    from paceline._commands.checkpoint_files import read_run_state, verify_checkpoint

    run_store, run = read_run_state(location)
    answers = []
    for record in run.checkpoints:
        checked = verify_checkpoint(run_store, record)
        answers.append(checked)
        if not as_json:
            status = "broken" if checked.problems else "intact"
            print(cli_output.escape_line(f"{checked.name}: {status}, {checked.num_files} files"), flush=True)
            for problem in checked.problems:
                print(f"  {cli_output.escape_line(problem)}")
    broken = sum(bool(checked.problems) for checked in answers)
    if as_json:
        cli_output.print_json({"ok": not broken, "checkpoints": answers})
    else:
        print(f"{broken} of {len(answers)} broken" if broken else f"all {len(answers)} are intact")
    return BROKEN if broken else FINE


def _export_one(location: RunLocation, name: str, directory: str, as_json: bool) -> int:
    from paceline._commands.checkpoint_files import BrokenCheckpointError, export_checkpoint, find_checkpoint

    run_store, record = find_checkpoint(location, name)
    try:
        target = export_checkpoint(run_store, record, directory)
    except BrokenCheckpointError as problem:
        cli_output.print_error(str(problem))
        return BROKEN
    if as_json:
        return cli_output.print_json({"name": record.name, "directory": str(target)})
    print(f"{cli_output.escape_line(record.name)} verified and copied to {cli_output.escape_line(str(target))}")
    return FINE


def _prune_checkpoints(location: RunLocation, args: argparse.Namespace) -> int:
    from paceline._commands.checkpoint_files import plan_pruning, prune_checkpoints
    from paceline._view import formatting

    if args.yes:
        removed, kept = prune_checkpoints(location, args.keep, cli_output.print_error)
    else:
        removed, kept = plan_pruning(location, args.keep)
    if args.json:
        names = {"removed": [r.name for r in removed], "kept": [r.name for r in kept], "done": args.yes}
        return cli_output.print_json(names)

    freed = formatting.size(sum(record.num_bytes for record in removed))
    for record in removed:
        print(cli_output.escape_line(f"{'removed' if args.yes else 'would remove'} {record.name}"))
    num_kept = formatting.format_count(len(kept), "checkpoint")
    if removed and not args.yes:
        print(f"would free {freed} and keep {num_kept}; --yes does it")
    else:
        print(f"{f'{freed} freed' if removed else 'nothing to remove'}; {num_kept} kept")
    return FINE
