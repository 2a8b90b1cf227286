"""Draws the plots of a results file as SVG: every curve, and all ratios in one chart. The output is reproducible.

`python benchmarks/plots.py benchmarks/results/X.json` writes docs/images/bench-*.svg.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from _circumstances import ROOT
from _figures import Curve, Line, Measure, Ratio, Report
from table import plot_titles

matplotlib.use("svg")
# Text stays text, and ids are not random.
SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "paceline", "font.size": 9, "font.sans-serif": ["DejaVu Sans"]}
matplotlib.rcParams.update(SETTINGS)

import matplotlib.pyplot as plt  # noqa: E402

IMAGES = ROOT / "docs" / "images"
COLOURS = {"ours": "#1f6feb", "floor": "#8b949e"}
PEER_COLOURS = ("#d1242f", "#bf8700", "#8250df", "#1a7f37", "#bc4c00")


def write_plots(document: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw all plots and return the written files."""
    directory.mkdir(parents=True, exist_ok=True)
    reports = {data["question"]: Report.from_json(data) for data in document["benchmarks"].values()}
    written = []
    for name, title in plot_titles(document).items():
        path = directory / name
        if title in reports:
            written.append(_plot_curves(title, reports[title].curves, path))
        else:
            compared = [measure for report in reports.values() for measure in report.measures if measure.peers]
            written.append(_plot_ratios(compared, path))
    return written


def _plot_curves(title: str, curves: Sequence[Curve], path: Path) -> Path:
    """Draw all curves of a question in one image, each with its own axes."""
    columns = min(2, len(curves))
    lines = math.ceil(len(curves) / columns)
    figure, panels = plt.subplots(
        lines, columns, figsize=(4.2 * columns, 2.7 * lines + 0.3), layout="constrained", squeeze=False
    )
    for panel in panels.flat[len(curves) :]:
        panel.set_visible(False)
    for curve, panel in zip(curves, panels.flat, strict=False):
        _plot_curve(curve, panel)
    figure.suptitle(title)
    return _save_figure(figure, path)


def _plot_curve(curve: Curve, axes: Any) -> None:
    for name, line in curve.floor.items():
        _plot_line(axes, f"floor: {name}", line, COLOURS["floor"], "--")
    for (name, line), colour in zip(curve.peers.items(), PEER_COLOURS, strict=False):
        _plot_line(axes, name, line, colour, "-")
    _plot_line(axes, "Paceline", curve.ours, COLOURS["ours"], "-")
    if len(curve.xs) > 1 and curve.xs[0] > 0 and curve.xs[-1] / curve.xs[0] >= 8:
        axes.set_xscale("log")
        axes.set_xticks(curve.xs, [f"{x:,.10g}" for x in curve.xs])
    lines = [curve.ours, *curve.peers.values(), *curve.floor.values()]
    middles = [statistics.median(samples) for line in lines for samples in line.values()]
    if min(middles) > 0 and max(middles) / min(middles) >= 20:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_format_plain)
    else:
        axes.set_ylim(0, 1.2 * max(max(samples) for line in lines for samples in line.values()))
    axes.set_xlabel(curve.x_label)
    axes.set_ylabel(curve.unit)
    axes.set_title(curve.name)
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    if curve.peers or curve.floor:
        axes.legend(frameon=False)


def _plot_line(axes: Any, name: str, line: Line, colour: str, style: str) -> None:
    xs = sorted(line)
    middles = [statistics.median(line[x]) for x in xs]
    below = [middle - min(line[x]) for x, middle in zip(xs, middles, strict=True)]
    above = [max(line[x]) - middle for x, middle in zip(xs, middles, strict=True)]
    axes.errorbar(
        xs, middles, yerr=(below, above), label=name, color=colour, linestyle=style, marker="o", ms=3, capsize=2
    )


def _plot_ratios(measures: list[Measure], path: Path) -> Path:
    """Draw how many times better than the peer: its time divided by ours, or our rate divided by its rate."""
    bars = []
    for measure in measures:
        for name, samples in measure.peers.items():
            ratio = Ratio.of(measure.ours, samples)
            if not measure.unit.startswith("/"):
                ratio = Ratio(1 / ratio.middle, 1 / ratio.most, 1 / ratio.least)
            bars.append((f"{measure.name}: {name}", ratio))
    figure, axes = plt.subplots(figsize=(7.2, 0.8 + 0.22 * len(bars)), layout="constrained")
    for place, (_, ratio) in enumerate(reversed(bars)):
        colour = COLOURS["ours"] if ratio.middle >= 1 else PEER_COLOURS[0]
        axes.plot([1, ratio.middle], [place, place], color=colour, linewidth=5, solid_capstyle="butt")
        axes.plot([ratio.least, ratio.most], [place, place], color="black", linewidth=0.8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_format_plain)
    axes.minorticks_off()
    axes.set_yticks(range(len(bars)), [label for label, _ in reversed(bars)])
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.set_xlabel("times as fast, or as little, as the peer; thin: the spread")
    axes.grid(alpha=0.25, axis="x")
    return _save_figure(figure, path)


def _format_plain(value: float, _: int) -> str:
    return f"{value:,.10g}"


def _save_figure(figure: Any, path: Path) -> Path:
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    path.write_text(re.sub(r"\n\s+", "\n", svg.getvalue()))
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--into", type=Path, default=IMAGES, help="default docs/images")
    options = parser.parse_args()
    for path in write_plots(json.loads(options.results.read_text()), options.into):
        print(path)
