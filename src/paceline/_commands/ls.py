"""`paceline ls [PATH]`: list the runs under a path, one line each. `--trials` also lists the trials of searches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args

from paceline._commands import cli_args, cli_output, searches

if TYPE_CHECKING:
    from paceline._view.model import Summary


SORTS: dict[str, Callable[[Summary], Any]] = {
    "age": lambda run: -run.began_at,
    "updated": lambda run: -run.updated_at,
    "name": lambda run: run.id,
    "state": lambda run: (run.state, run.id),
    "progress": lambda run: (-(run.progress if run.progress is not None else -1.0), -run.num_reports),
    "best": lambda run: (run.best is None, run.best and run.best.value * (1 if run.best.mode == "min" else -1)),
}


def main(arguments: Sequence[str]) -> int:
    from paceline._view.model import State

    parser = cli_args.CommandParser(
        "ls",
        "Lists the runs under a path, newest first.",
        "paceline ls --state running",
        "paceline ls s3://bucket/runs --sort best --limit 10",
        runs=(),
    )
    add = parser.add_argument
    add("path", nargs="?", metavar="PATH", help="a directory or an address (the storage path)")
    add("--trials", action="store_true", help="list the trials of searches, too")
    about = "only runs in this state; may be repeated"
    add("--state", action="append", choices=get_args(State), metavar="STATE", help=about)
    add("--sort", choices=SORTS, default="age", help="sort key (age: newest first)")
    add("--limit", type=cli_args.parse_positive_int, metavar="N", help="at most N runs")
    args = parser.parse_args(arguments)
    root = cli_args.resolve_root(args.path)
    runs = [run for run in searches.read_listing(root).summaries() if args.trials or run.kind != "trial"]
    if args.state:
        runs = [run for run in runs if run.state in args.state]
    runs = _group_trials(sorted(runs, key=SORTS[args.sort]))
    shown = runs[: args.limit]
    if args.json:
        return cli_output.print_json(shown)
    if not shown:
        state = f" that are {' or '.join(args.state)}" if args.state else ""
        print(f"no runs{state} in {cli_output.escape_line(root)}")
        return 0
    print(format_runs(shown, time.time()))
    if len(runs) > len(shown):
        print(f"and {len(runs) - len(shown)} more")
    return 0


def _group_trials(runs: Sequence[Summary]) -> list[Summary]:
    """Move trials below their search, if it is listed."""
    search_ids = {run.id for run in runs if run.kind == "search"}
    trials: dict[str | None, list[Summary]] = {}
    for run in runs:
        if run.search in search_ids:
            trials.setdefault(run.search, []).append(run)
    return [each for run in runs if run.search not in search_ids for each in (run, *trials.get(run.id, ()))]


def format_runs(runs: Sequence[Summary], now: float) -> str:
    from paceline._view import formatting

    rows = [("NAME", "STATE", "PROGRESS", "BEST", "LAST", "WORKERS", "AGE")]
    for run in runs:
        name = run.id if run.id != "." else run.name
        if run.kind == "trial" and run.name != run.id.rpartition("/")[2]:
            name += f" ({run.name})"
        best = f"{run.best.metric}={formatting.number(run.best.value)}" if run.best is not None else ""
        age = formatting.duration(max(0.0, now - run.began_at))
        workers = str(run.num_workers or "")
        rows.append((name, run.state, format_progress(run), best, format_last_metric(run), workers, age))
    return cli_output.format_table(rows, right=(5, 6), states=(1,), within=cli_output.terminal_width())


def format_progress(run: Summary) -> str:
    from paceline._view import formatting

    if run.progress is None or run.state == "finished":
        if run.kind == "search":
            return f"{formatting.format_count(run.num_reports, 'trial')} ended"
        return formatting.format_count(run.num_reports, "report")
    left = f", {formatting.duration(run.left_s)} left" if run.left_s is not None else ""
    return f"{run.progress:.0%}{left}"


def format_last_metric(run: Summary) -> str:
    """Format one metric of the last report: the one being optimized, else the first."""
    from paceline._view import formatting

    name = run.best.metric if run.best is not None else next(iter(run.metrics), None)
    if name is None or name not in run.metrics:
        return ""
    return formatting.values({name: run.metrics[name]})
