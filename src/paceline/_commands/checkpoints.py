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
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.keep is not None and not asked.prune:
        parser.error("--keep belongs to --prune")
    if asked.prune and asked.keep is None:
        parser.error("--prune needs --keep N")
    home = cli_args.locate_run(asked.run)
    if asked.export is not None:
        return _export_one(home, asked.export[0], asked.export[1], asked.json)
    if asked.prune:
        return _prune_checkpoints(home, asked)
    return _verify_all(home, asked.json) if asked.verify else _list_checkpoints(home, asked.json)


def _parser() -> cli_args.CommandParser:
    parser = cli_args.CommandParser(
        "checkpoints",
        "Lists the checkpoints of a run. All of it works on a run in a store, too; only --prune changes anything.",
        "paceline checkpoints resnet --verify",
        "paceline checkpoints resnet --export best ./best-model",
        "paceline checkpoints resnet --prune --keep 3 --yes",
        codes="0 fine, 1 a checkpoint is broken, 2 bad usage, not found or held by a driver",
    )
    parser.add_run_argument()
    act = parser.add_mutually_exclusive_group()
    act.add_argument("--verify", action="store_true", help="read every file, and compare size and hash")
    act.add_argument(
        "--export", nargs=2, metavar=("NAME", "DIR"), help="verify one and copy it to a new directory; latest, best"
    )
    act.add_argument("--prune", action="store_true", help="remove all but the newest, the best and pinned ones")
    parser.add_argument("--keep", type=cli_args.parse_positive_int, metavar="N", help="with --prune: how many stay")
    parser.add_argument("--yes", action="store_true", help="with --prune: do it; without, it is only said")
    parser.add_json_option()
    return parser


def read_checkpoints(home: RunLocation) -> tuple[ShownCheckpoint, ...]:
    from paceline._view.run_reader import RunReader

    reader = RunReader(home)
    reader.refresh()
    return reader.detail().checkpoints


def _list_checkpoints(home: RunLocation, as_json: bool) -> int:
    found = [shown for shown in read_checkpoints(home) if shown.kept]
    if as_json:
        return cli_output.print_json(found)
    if not found:
        print(f"{cli_output.escape_line(home.name)} has no checkpoints")
        return FINE
    print(format_checkpoints(found))
    return FINE


def format_checkpoints(found: Sequence[ShownCheckpoint], indent: str = "", within: int | None = None) -> str:
    from paceline._view import formatting

    rows = [("NAME", "REPORT", "SIZE", "SAVED", "", "METRICS")]
    for shown in found:
        marks = [mark for mark, holds in (("latest", shown.is_latest), ("best", shown.is_best)) if holds]
        marks += [shown.status.lower()] if shown.status not in ("", "COMMITTED", "VALIDATED") else []
        at = formatting.when(shown.at) if shown.at else ""
        metrics = formatting.values(dict(list(shown.metrics.items())[:3]))
        rows.append((shown.name, str(shown.seq), formatting.size(shown.num_bytes), at, ",".join(marks), metrics))
    return cli_output.format_table(rows, right=(1, 2), indent=indent, within=within or cli_output.terminal_width())


def _verify_all(home: RunLocation, as_json: bool) -> int:
    from paceline._commands.checkpoint_files import read_run_state, verify_checkpoint

    depot, run = read_run_state(home)
    answers = []
    for record in run.checkpoints:
        checked = verify_checkpoint(depot, record)
        answers.append(checked)
        if not as_json:
            told = "broken" if checked.problems else "whole"
            print(cli_output.escape_line(f"{checked.name}: {told}, {checked.num_files} files"), flush=True)
            for problem in checked.problems:
                print(f"  {cli_output.escape_line(problem)}")
    broken = sum(bool(checked.problems) for checked in answers)
    if as_json:
        cli_output.print_json({"ok": not broken, "checkpoints": answers})
    else:
        print(f"{broken} of {len(answers)} broken" if broken else f"all {len(answers)} are whole")
    return BROKEN if broken else FINE


def _export_one(home: RunLocation, name: str, directory: str, as_json: bool) -> int:
    from paceline._commands.checkpoint_files import BrokenCheckpointError, export_checkpoint, find_checkpoint

    depot, record = find_checkpoint(home, name)
    try:
        target = export_checkpoint(depot, record, directory)
    except BrokenCheckpointError as problem:
        cli_output.print_error(str(problem))
        return BROKEN
    if as_json:
        return cli_output.print_json({"name": record.name, "directory": str(target)})
    print(f"{cli_output.escape_line(record.name)} verified and copied to {cli_output.escape_line(str(target))}")
    return FINE


def _prune_checkpoints(home: RunLocation, asked: argparse.Namespace) -> int:
    from paceline._commands.pruning import plan_pruning, prune_checkpoints

    say = cli_output.print_error
    removed, left = prune_checkpoints(home, asked.keep, say) if asked.yes else plan_pruning(home, asked.keep)
    if asked.json:
        names = {"removed": [r.name for r in removed], "kept": [r.name for r in left], "done": asked.yes}
        return cli_output.print_json(names)
    from paceline._view import formatting

    freed = formatting.size(sum(record.num_bytes for record in removed))
    for record in removed:
        print(cli_output.escape_line(f"{'removed' if asked.yes else 'would remove'} {record.name}"))
    if not removed:
        print(f"nothing to remove: {formatting.format_count(len(left), 'checkpoint')} stay")
    elif asked.yes:
        print(f"{freed} freed; {formatting.format_count(len(left), 'checkpoint')} stay")
    else:
        print(f"{freed} would be freed, and {formatting.format_count(len(left), 'checkpoint')} stay; --yes does it")
    return FINE
