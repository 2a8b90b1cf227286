"""Formats a few lines of a results file for the README, with one column for each peer.

`python benchmarks/short_table.py benchmarks/results/X.json` writes them between the README's markers.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _circumstances import ROOT
from _figures import Report, number

PAGE = ROOT / "README.md"
MARKERS = re.compile(r"<!-- results in short: (?P<file>\S+) -->\n.*?<!-- end of results in short -->", re.DOTALL)
COLUMNS = ("Ray Train", "torchrun", "Accelerate", "Lightning")


@dataclass(frozen=True)
class Line:
    text: str
    benchmark: str
    measure: str
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns of peers with another name. The name is printed beside the number."""


LINES = (
    Line("`python script.py`, start to exit", "cold_start", "cold start"),
    Line("a later `fit()` in the same process", "second_fit", "second fit"),
    Line(
        "loop blocked by a 256 MB checkpoint",
        "checkpoint_stall",
        "checkpoint of 256 MB, ASYNC",
        {"save": "torchrun", "Ray Train ASYNC": "Ray Train"},
    ),
    Line("from a worker's SIGKILL to the next step", "recovery", "recovery, kill to first step"),
    Line("memory, all processes", "memory", "memory"),
    Line("small DDP model, steps", "ddp_overhead", "small DDP model, steps"),
    Line("tabular rows, read by both workers", "data_tabular", "tabular rows", {"Ray Data": "Ray Train"}),
    Line("a search of 40 trials", "tune_trials", "40 trials", {"Ray Tune": "Ray Train"}),
)


def format_markdown(document: Mapping[str, Any], file: str) -> str:
    rows = [["", "Paceline", *COLUMNS], ["---"] * (len(COLUMNS) + 2)]
    for line in LINES:
        if (cells := _cells(document, line)) is not None:
            rows.append([line.text, *cells])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    machine = document["machine"]
    return f"{document['date'][:10]}, {machine['cores']} cores, medians of [all samples]({file}):\n\n{table}"


def _cells(document: Mapping[str, Any], line: Line) -> list[str] | None:
    if line.benchmark not in document["benchmarks"]:
        return None
    measures = [m for m in Report.from_json(document["benchmarks"][line.benchmark]).measures if m.name == line.measure]
    if not measures:
        raise ValueError(f"{line.benchmark} has no measure called {line.measure!r}")
    cells = dict.fromkeys(COLUMNS, "")
    for measure in measures:
        for name, samples in measure.peers.items():
            column = line.columns.get(name, name)
            if column in cells:
                suffix = {"save": " (`torch.save`)", "Ray Data": " (Ray Data)", "Ray Tune": " (Ray Tune)"}.get(name, "")
                cells[column] = number(statistics.median(samples), measure.unit) + suffix
    ours = f"**{number(statistics.median(measures[0].ours), measures[0].unit)}**"
    return [ours, *cells.values()]


def insert_table(page: str, file: str, text: str) -> str:
    if len(MARKERS.findall(page)) != 1:
        raise ValueError("the page must have exactly one pair of markers for the short results")
    return MARKERS.sub(lambda _: f"<!-- results in short: {file} -->\n{text}\n<!-- end of results in short -->", page)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    file = str(options.results.resolve().relative_to(ROOT))
    try:
        PAGE.write_text(
            insert_table(PAGE.read_text(), file, format_markdown(json.loads(options.results.read_text()), file))
        )
    except ValueError as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
