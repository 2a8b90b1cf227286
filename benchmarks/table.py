"""Formats a results file as a table: for the terminal, and as Markdown between the markers of a page.

`python benchmarks/table.py benchmarks/results/X.json` writes it to docs/benchmarks.md. The markers are
`<!-- results: benchmarks/results/X.json -->` to `<!-- end of results -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _circumstances import ROOT
from _figures import Curve, Measure, Ratio, Report, note, number

PAGE = ROOT / "docs" / "benchmarks.md"
HEADINGS = ("", "ours", "floor", "peer", "ours / peer", "bar", "")
MARKERS = re.compile(r"<!-- results: (?P<file>\S+) -->\n.*?<!-- end of results -->", re.DOTALL)
NOT_YET = "No results are kept here yet: `make bench`, then `make bench-results NAME=two-cores`."

Row = tuple[str, ...]


def make_rows(document: Mapping[str, Any]) -> list[Row]:
    """One row for each measure and peer; for a curve, its first and last x."""
    rows: list[Row] = []
    for data in document["benchmarks"].values():
        report = Report.from_json(data)
        for measure in report.measures:
            rows += _measure_rows(measure, measure.bar.text(measure.unit) if measure.bar else "", measure.met_text())
        for curve in report.curves:
            rows += _curve_rows(curve)
    return rows


def _measure_rows(measure: Measure, bar: str, met: str) -> list[Row]:
    ours = note(measure.ours, measure.unit)
    floor = ", ".join(f"{name} {note(samples, measure.unit)}" for name, samples in measure.floor.items())
    first, rows = (measure.name, ours, floor), list[Row]()
    for name, samples in measure.peers.items():
        peer = f"{name} {note(samples, measure.unit)}"
        rows.append((*(first if not rows else ("", "", "")), peer, str(Ratio.of(measure.ours, samples))))
    return [
        (*cells, *((bar, met) if not place else ("", ""))) for place, cells in enumerate(rows or [(*first, "", "")])
    ]


def _curve_rows(curve: Curve) -> list[Row]:
    places = sorted({curve.xs[0], curve.xs[-1], *filter(None, [curve.last_of_peer])})
    rows = [row for x in places for row in _measure_rows(curve.at(x), "", "")]
    growth = f"from {number(curve.xs[0], '')} to {number(curve.xs[-1], '')}: {curve.growth} x"
    return [*rows, (f"{curve.name}, growth", growth, "", "", "", curve.bar_text(), curve.met_text())]


def format_terminal(document: Mapping[str, Any]) -> str:
    lines = [describe_run(document)]
    table = [HEADINGS, *make_rows(document)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    for data in document["benchmarks"].values():
        lines += [f"{data['question']}, {name}: {text}" for name, text in data["notes"].items()]
    return "\n".join(lines)


def format_markdown(document: Mapping[str, Any], file: str) -> str:
    """One row for each measure: medians, with the spread of the ratio that the bar limits."""
    headings = ("", "ours", "floor", "ours / peer", "bar", "met")
    table = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    for data in document["benchmarks"].values():
        report = Report.from_json(data)
        cells = [_measure_cells(measure) for measure in report.measures] + [
            _curve_cells(each) for each in report.curves
        ]
        table += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    images = [f"![{title}](images/{name})" for name, title in plot_titles(document).items()]
    description = textwrap.fill(describe_run(document), 120, break_long_words=False, break_on_hyphens=False)
    source = f"All samples, their spread and further notes: [{Path(file).name}](../{file})."
    return "\n\n".join([description, "\n".join(table), source, *images])


def _measure_cells(measure: Measure) -> Row:
    def median(samples: Sequence[float]) -> str:
        return number(statistics.median(samples), measure.unit)

    ratios = [f"{name} {Ratio.of(measure.ours, samples).middle:.2g}" for name, samples in measure.peers.items()]
    if ratios:
        name, samples = next(iter(measure.peers.items()))
        ratios[0] = f"{name} {Ratio.of(measure.ours, samples)}"
    floor = ", ".join(f"{name} {median(samples)}" for name, samples in measure.floor.items())
    bar = measure.bar.text(measure.unit) if measure.bar else ""
    return measure.name, median(measure.ours), floor, ", ".join(ratios), bar, measure.met_text()


def _curve_cells(curve: Curve) -> Row:
    first, last = (number(statistics.median(curve.ours[x]), curve.unit) for x in (curve.xs[0], curve.xs[-1]))
    name = f"{curve.name}, {curve.x_label} {number(curve.xs[0], '')} to {number(curve.xs[-1], '')}"
    peer = f"{next(iter(curve.peers))} {curve.ratio:.2g}" if curve.ratio is not None else ""
    return name, f"{first} to {last}", "", peer, curve.bar_text(), curve.met_text()


def plot_titles(document: Mapping[str, Any]) -> dict[str, str]:
    """File names of the plots that `plots.py` draws, with their titles."""
    reports = document["benchmarks"]
    titles = {}
    if any(measure["peers"] for data in reports.values() for measure in data["measures"]):
        titles["bench-ratios.svg"] = "How many times as fast, or as little, as each peer"
    for name, data in reports.items():
        if data["curves"]:
            titles[f"bench-{name.replace('_', '-')}.svg"] = data["question"]
    return titles


def describe_run(document: Mapping[str, Any]) -> str:
    """Date, command, machine, versions, and which peers were left out."""
    machine, versions = document["machine"], document["versions"]
    text = (
        f"{document['date'][:10]}, `{document['command']}`, {document['total_s'] / 60:.0f} minutes, commit "
        f"{document['commit']}; {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['filesystem']}, {machine['system']}, load average {machine['load_average'][0]:.1f} before; "
        f"Python {versions['python']}, torch {versions['torch']}"
    )
    for name, packages in document["peers"].items():
        text += f"; {name}: " + ", ".join(f"{package} {version}" for package, version in packages.items())
    if document["without"]:
        text += f"; LEFT OUT: {', '.join(document['without'])}"
    if document["failed"]:
        text += f"; FAILED: {', '.join(document['failed'])}"
    return text + "."


def insert_table(page: str, file: str, text: str) -> str:
    """The page with the table between its markers, which name the file."""
    places = MARKERS.findall(page)
    if len(places) != 1:
        raise ValueError(f"the page must have one pair of markers for the results, got {len(places)}")
    return MARKERS.sub(lambda _: f"<!-- results: {file} -->\n{text}\n<!-- end of results -->", page)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE, help="default docs/benchmarks.md")
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    path = options.results.resolve()
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    text = format_markdown(json.loads(path.read_text()), name)
    try:
        page = insert_table(options.page.read_text(), name, text)
    except ValueError as problem:
        sys.exit(f"{options.page}: {problem}")
    options.page.write_text(page)


if __name__ == "__main__":
    main()
