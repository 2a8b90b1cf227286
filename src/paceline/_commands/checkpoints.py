"""`paceline checkpoints RUN`: list them, check their files against the hashes they were committed with, copy one out,
or remove those that nobody needs any more."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline._commands import asking, telling

if TYPE_CHECKING:
    from paceline._storage.home import Home
    from paceline._view.model import ShownCheckpoint

FINE, BROKEN, REFUSED = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.keep is not None and not asked.prune:
        parser.error("--keep belongs to --prune")
    if asked.prune and asked.keep is None:
        parser.error("--prune needs --keep N")
    home = asking.home_of(asked.run)
    if asked.export is not None:
        return _export(home, asked.export[0], asked.export[1], asked.json)
    if asked.prune:
        return _prune(home, asked)
    return _verify(home, asked.json) if asked.verify else _list(home, asked.json)


def _parser() -> asking.Parser:
    parser = asking.Parser(
        "checkpoints",
        "Lists the checkpoints of a run. All of it works on a run in a store, too; only --prune changes anything.",
        "paceline checkpoints resnet --verify",
        "paceline checkpoints resnet --export best ./best-model",
        "paceline checkpoints resnet --prune --keep 3 --yes",
        codes="0 fine, 1 a checkpoint is broken, 2 bad usage, not found or held by a driver",
    )
    parser.add_run()
    act = parser.add_mutually_exclusive_group()
    act.add_argument("--verify", action="store_true", help="read every file, and compare size and hash")
    act.add_argument(
        "--export", nargs=2, metavar=("NAME", "DIR"), help="verify one and copy it to a new directory; latest, best"
    )
    act.add_argument("--prune", action="store_true", help="remove all but the newest, the best and pinned ones")
    parser.add_argument("--keep", type=asking.natural, metavar="N", help="with --prune: how many stay")
    parser.add_argument("--yes", action="store_true", help="with --prune: do it; without, it is only said")
    parser.add_json()
    return parser


def shown_in(home: Home) -> tuple[ShownCheckpoint, ...]:
    from paceline._view.reading import RunReader

    reader = RunReader(home)
    reader.refresh()
    return reader.detail().checkpoints


def _list(home: Home, as_json: bool) -> int:
    found = [shown for shown in shown_in(home) if shown.kept]
    if as_json:
        return telling.json(found)
    if not found:
        print(f"{telling.line(home.name)} has no checkpoints")
        return FINE
    print(listed(found))
    return FINE


def listed(found: Sequence[ShownCheckpoint], indent: str = "", within: int | None = None) -> str:
    from paceline._view import words

    rows = [("NAME", "REPORT", "SIZE", "SAVED", "", "METRICS")]
    for shown in found:
        marks = [mark for mark, holds in (("latest", shown.is_latest), ("best", shown.is_best)) if holds]
        marks += [shown.status.lower()] if shown.status not in ("", "COMMITTED", "VALIDATED") else []
        at = words.when(shown.at) if shown.at else ""
        metrics = words.values(dict(list(shown.metrics.items())[:3]))
        rows.append((shown.name, str(shown.seq), words.size(shown.num_bytes), at, ",".join(marks), metrics))
    return telling.table(rows, right=(1, 2), indent=indent, within=within or telling.width())


def _verify(home: Home, as_json: bool) -> int:
    from paceline._commands.checkpoint_files import records_in, verified

    depot, run = records_in(home)
    answers = []
    for record in run.checkpoints:
        checked = verified(depot, record)
        answers.append(checked)
        if not as_json:
            told = "broken" if checked.problems else "whole"
            print(telling.line(f"{checked.name}: {told}, {checked.num_files} files"), flush=True)
            for problem in checked.problems:
                print(f"  {telling.line(problem)}")
    broken = sum(bool(checked.problems) for checked in answers)
    if as_json:
        telling.json({"ok": not broken, "checkpoints": answers})
    else:
        print(f"{broken} of {len(answers)} broken" if broken else f"all {len(answers)} are whole")
    return BROKEN if broken else FINE


def _export(home: Home, name: str, directory: str, as_json: bool) -> int:
    from paceline._commands.checkpoint_files import BrokenError, exported, found

    depot, record = found(home, name)
    try:
        target = exported(depot, record, directory)
    except BrokenError as problem:
        telling.complain(str(problem))
        return BROKEN
    if as_json:
        return telling.json({"name": record.name, "directory": str(target)})
    print(f"{telling.line(record.name)} verified and copied to {telling.line(str(target))}")
    return FINE


def _prune(home: Home, asked: argparse.Namespace) -> int:
    from paceline._commands.pruning import planned, pruned

    say = telling.complain
    removed, left = pruned(home, asked.keep, say) if asked.yes else planned(home, asked.keep)
    if asked.json:
        names = {"removed": [r.name for r in removed], "kept": [r.name for r in left], "done": asked.yes}
        return telling.json(names)
    from paceline._view import words

    freed = words.size(sum(record.num_bytes for record in removed))
    for record in removed:
        print(telling.line(f"{'removed' if asked.yes else 'would remove'} {record.name}"))
    if not removed:
        print(f"nothing to remove: {words.counted(len(left), 'checkpoint')} stay")
    elif asked.yes:
        print(f"{freed} freed; {words.counted(len(left), 'checkpoint')} stay")
    else:
        print(f"{freed} would be freed, and {words.counted(len(left), 'checkpoint')} stay; --yes does it")
    return FINE
