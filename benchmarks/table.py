"""The one table of a results file: for the terminal, and in Markdown between the markers of a page.

`python benchmarks/table.py benchmarks/results/X.json` puts it into docs/benchmarks.md, so that the numbers there are
those of the file. The page says where: `<!-- results: benchmarks/results/X.json -->` to `<!-- end of results -->`.
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
MARKED = re.compile(r"<!-- results: (?P<file>\S+) -->\n.*?<!-- end of results -->", re.DOTALL)
NOT_YET = "No results are kept here yet: `make bench`, then `make bench-results NAME=two-cores`."

Row = tuple[str, ...]


def rows(document: Mapping[str, Any]) -> list[Row]:
    """One row for each number and peer; of a curve, for its first and its last place."""
    found: list[Row] = []
    for data in document["benchmarks"].values():
        report = Report.from_json(data)
        for measure in report.measures:
            found += _of_measure(measure, measure.bar.text(measure.unit) if measure.bar else "", measure.met_text())
        for curve in report.curves:
            found += _of_curve(curve)
    return found


def _of_measure(measure: Measure, bar: str, met: str) -> list[Row]:
    ours = note(measure.ours, measure.unit)
    floor = ", ".join(f"{name} {note(samples, measure.unit)}" for name, samples in measure.floor.items())
    first, found = (measure.name, ours, floor), list[Row]()
    for name, samples in measure.peers.items():
        peer = f"{name} {note(samples, measure.unit)}"
        found.append((*(first if not found else ("", "", "")), peer, str(Ratio.of(measure.ours, samples))))
    return [
        (*cells, *((bar, met) if not place else ("", ""))) for place, cells in enumerate(found or [(*first, "", "")])
    ]


def _of_curve(curve: Curve) -> list[Row]:
    places = sorted({curve.xs[0], curve.xs[-1], *filter(None, [curve.last_of_peer])})
    found = [row for x in places for row in _of_measure(curve.at(x), "", "")]
    grown = f"from {number(curve.xs[0], '')} to {number(curve.xs[-1], '')}: {curve.growth} x"
    return [*found, (f"{curve.name}, growth", grown, "", "", "", curve.bar_text(), curve.met_text())]


def terminal(document: Mapping[str, Any]) -> str:
    lines = [about(document)]
    table = [HEADINGS, *rows(document)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    for data in document["benchmarks"].values():
        lines += [f"{data['question']}, {name}: {text}" for name, text in data["notes"].items()]
    return "\n".join(lines)


def markdown(document: Mapping[str, Any], file: str) -> str:
    """A row for each number: medians, with the spread of the ratio that a bar is about. The file has the rest."""
    headings = ("", "ours", "floor", "ours / peer", "bar", "met")
    table = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    for data in document["benchmarks"].values():
        report = Report.from_json(data)
        cells = [_measure_cells(measure) for measure in report.measures] + [
            _curve_cells(each) for each in report.curves
        ]
        table += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    images = [f"![{title}](images/{name})" for name, title in plots_of(document).items()]
    about_it = textwrap.fill(about(document), 120, break_long_words=False, break_on_hyphens=False)
    source = f"All samples, their spread and further notes: [{Path(file).name}](../{file})."
    return "\n\n".join([about_it, "\n".join(table), source, *images])


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


def plots_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Names of the plots' files, which `plots.py` makes, and what they show."""
    reports = document["benchmarks"]
    found = {}
    if any(measure["peers"] for data in reports.values() for measure in data["measures"]):
        found["bench-ratios.svg"] = "How many times as fast, or as little, as each peer"
    for name, data in reports.items():
        if data["curves"]:
            found[f"bench-{name.replace('_', '-')}.svg"] = data["question"]
    return found


def about(document: Mapping[str, Any]) -> str:
    """When, where, with what, and who did not take part."""
    machine, versions = document["machine"], document["versions"]
    said = (
        f"{document['date'][:10]}, `{document['command']}`, {document['total_s'] / 60:.0f} minutes, commit "
        f"{document['commit']}; {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['filesystem']}, {machine['system']}, load average {machine['load_average'][0]:.1f} before; "
        f"Python {versions['python']}, torch {versions['torch']}"
    )
    for name, have in document["peers"].items():
        said += f"; {name}: " + ", ".join(f"{package} {version}" for package, version in have.items())
    if document["without"]:
        said += f"; LEFT OUT: {', '.join(document['without'])}"
    if document["failed"]:
        said += f"; FAILED: {', '.join(document['failed'])}"
    return said + "."


def put_into(page: str, file: str, text: str) -> str:
    """A page with the table between its markers, which then name the file."""
    found = MARKED.findall(page)
    if len(found) != 1:
        raise ValueError(f"the page has {len(found)} places for a table of results; one is needed")
    return MARKED.sub(lambda _: f"<!-- results: {file} -->\n{text}\n<!-- end of results -->", page)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE, help="default docs/benchmarks.md")
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    path = options.results.resolve()
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    text = markdown(json.loads(path.read_text()), name)
    try:
        page = put_into(options.page.read_text(), name, text)
    except ValueError as problem:
        sys.exit(f"{options.page}: {problem}")
    options.page.write_text(page)


if __name__ == "__main__":
    main()
