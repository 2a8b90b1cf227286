"""`paceline show RUN`: all about one run, in plain text that fits 80 columns; of a search, its trials."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paceline._commands import asking, telling

if TYPE_CHECKING:
    from paceline._storage.home import Home
    from paceline._view.model import Summary

FINE = 0


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    from paceline._view.reading import RunReader

    home = asking.home_of(asked.run, or_search=True)
    if asking.holds_search(home):
        return _search(home, asked.json)
    reader = RunReader(home)
    reader.refresh()
    detail = reader.detail()
    if asked.json:
        return telling.json(detail)
    from paceline._commands import sections

    print(sections.told(detail, time.time()))
    return FINE


def _parser() -> asking.Parser:
    parser = asking.Parser(
        "show",
        "Shows one run: its state, workers, attempts with the causes of failures, what hangs, checkpoints, where the "
        "time went, which stage of its data the others wait for, and its configuration. Of a search, its trials.",
        "paceline show resnet",
        "paceline show s3://bucket/runs/resnet --json",
    )
    parser.add_run()
    parser.add_json()
    return parser


def _search(home: Home, as_json: bool) -> int:
    from paceline._view.searches import search_detail

    found = search_detail(home.address or home.uri, ".")
    if as_json:
        return telling.json(found)
    print("\n".join(_search_told(found.summary, found.trials, found.configs)))
    return FINE


def _search_told(search: Summary, trials: Sequence[Summary], configs: dict[str, dict[str, object]]) -> Iterator[str]:
    from paceline._commands import ls, sections
    from paceline._view import words

    yield from sections.head(search, time.time())
    best = search.best
    if best is not None:
        ranked = sorted(
            (trial for trial in trials if trial.best is not None),
            key=lambda trial: trial.best.value if trial.best is not None else 0.0,
            reverse=best.mode == "max",
        )
        if ranked:
            yield from sections.field(
                "best trial", f"{ranked[0].name} with {words.values(configs.get(ranked[0].id, {}))}"
            )
        trials = ranked + [trial for trial in trials if trial.best is None]
    yield ""
    yield f"trials ({len(trials)})"
    for row in ls.table(trials, time.time()).splitlines():
        yield telling.cut(f"  {row}", sections.WIDTH)
