"""`paceline show RUN`: print everything about a run in 80 columns; for a search, its trials."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from paceline._commands import cli_args, cli_output, searches

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation
    from paceline._view.model import Summary


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "show",
        "Shows one run: its state, workers, attempts with the causes of failures, what hangs, checkpoints, where the "
        "time went, which stage of its data the others wait for, and its configuration. Of a search, its trials.",
        "paceline show resnet",
        "paceline show s3://bucket/runs/resnet --json",
    )
    args = parser.parse_args(arguments)
    location = cli_args.locate_run(args.run, or_search=True)
    if cli_args.is_search(location):
        return _show_search(location, args.json)
    detail = cli_args.open_reader(location).snapshot()
    if args.json:
        return cli_output.print_json(detail)
    from paceline._commands import run_sections

    print(run_sections.format_run(detail, time.time()))
    return 0


def _show_search(location: RunLocation, as_json: bool) -> int:
    search = searches.read_listing(location.address or location.uri).search_detail(".")
    if as_json:
        return cli_output.print_json(search)
    print("\n".join(_format_search(search.summary, search.trials, search.configs)))
    return 0


def _format_search(search: Summary, trials: Sequence[Summary], configs: dict[str, dict[str, object]]) -> Iterator[str]:
    from paceline._commands import ls, run_sections
    from paceline._view import formatting

    yield from run_sections.format_head(search, time.time())
    if search.best is not None:
        measured = [(trial.best.value, trial) for trial in trials if trial.best is not None]
        measured.sort(key=itemgetter(0), reverse=search.best.mode == "max")
        ranked = [trial for _, trial in measured]
        for trial in ranked[:1]:
            config = formatting.values(configs.get(trial.id, {}))
            yield from run_sections.field("best trial", f"{trial.name} with {config}")
        trials = ranked + [trial for trial in trials if trial.best is None]
    yield ""
    yield f"trials ({len(trials)})"
    for row in ls.format_runs(trials, time.time()).splitlines():
        yield cli_output.truncate_line(f"  {row}", run_sections.WIDTH)
