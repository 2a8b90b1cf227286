"""Draws the plots of a search with matplotlib, from the data that `plots` makes.

Figures are made without pyplot, so no backend is selected and no figure stays open. Names are drawn literally: a `$`
does not start a formula.
"""

from __future__ import annotations

import hashlib
import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure as Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from paceline.tune.results.parameter_columns import format_label, shorten_middle

_BEST = "#d1226b"
_GREY = "#9a9a9a"
_DARK = "#333333"
_BAR = "#35608d"
_MOST_BARS = 15
_MOST_TICKS = 12
_MOST_DOTS = 60
_GAP = -0.09
"""Where a line passes below an axis on which it has no point."""
_TEXT: dict[str, Any] = {"parse_math": False, "usetex": False}
"""Draws text literally."""


class _NotebookFigure(Figure):
    """A figure that a notebook displays, even without matplotlib's inline mode."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png", dpi=110)
        return png.getvalue()


def draw_figure(
    parallel: dict[str, Any] | None,
    importance: dict[str, Any] | None,
    curves: dict[str, Any] | None,
    figsize: tuple[float, float] | None = None,
) -> Figure:
    """Draw one figure with the given plots."""
    width = max(9.0, 1.5 * len(parallel["axes"])) if parallel is not None else 9.0
    if parallel is not None and importance is not None and curves is not None:
        fig = _NotebookFigure(figsize=figsize or (max(width, 12.0), 9.0), layout="constrained")
        grid = fig.add_gridspec(2, 5)
        _draw_parallel(fig, fig.add_subplot(grid[0, :]), parallel)
        _draw_curves(fig.add_subplot(grid[1, :3]), curves)
        _draw_importance(fig.add_subplot(grid[1, 3:]), importance)
        return fig
    height = 5.0 if importance is None else max(2.2, 1.2 + 0.32 * min(len(importance["parameters"]), _MOST_BARS))
    fig = _NotebookFigure(figsize=figsize or (width, height), layout="constrained")
    axes = fig.add_subplot()
    if parallel is not None:
        _draw_parallel(fig, axes, parallel)
    if curves is not None:
        _draw_curves(axes, curves)
    if importance is not None:
        _draw_importance(axes, importance)
    return fig


def _draw_parallel(fig: Figure, axes: Axes, data: dict[str, Any]) -> None:
    lines, columns = data["lines"], data["axes"]
    metric = shorten_middle(data["metric"], 40)
    _set_title(axes, f"{len(lines)} trial{'s' * (len(lines) != 1)}: {metric} by parameter")
    if not lines:
        _draw_message(axes, "no trials")
        return
    bottom = -0.16 if any(column["has_gaps"] for column in columns) else -0.05
    axes.set(xlim=(-0.15, len(columns) - 1 + 0.25), ylim=(bottom, 1.05))
    axes.set_frame_on(False)
    axes.set_yticks([])
    colors = _MetricColors(columns[-1], data["mode"])
    for group, drawn in _group_lines(data):
        if drawn:
            paths, shades = [_line_points(line, columns) for line in drawn], colors.shades_of(group, drawn)
            axes.add_collection(LineCollection(paths, colors=shades, gid=group, **_line_style(group, len(lines))))
    for place, column in enumerate(columns):
        _draw_axis(axes, place, column, "not finite" if place == len(columns) - 1 else "not set")
    names = [_format_name(column["name"], 22) for column in columns]
    slanted = len(columns) > 1 and max(map(len, names)) > 90 / len(columns)
    axes.set_xticks(
        range(len(columns)), names, rotation=20 if slanted else 0, ha="right" if slanted else "center", **_TEXT
    )
    axes.get_xticklabels()[-1].set_fontweight("bold")
    axes.tick_params(axis="x", length=0, pad=8)
    if any(line["value"] is not None for line in lines):
        colors.draw_bar(fig, axes, metric)
    _draw_legend(axes, data, above=True)


def _draw_axis(axes: Axes, place: int, column: dict[str, Any], gap: str) -> None:
    axes.plot([place, place], [0, 1], color=_DARK, linewidth=1, zorder=6)
    for at, text in _choose_ticks(column):
        axes.plot([place - 0.015, place + 0.015], [at, at], color=_DARK, linewidth=1, zorder=6)
        _format_tick(axes, place, at, text)
    if column["has_gaps"]:
        _format_tick(axes, place, _GAP, gap, color=_GREY)


def _format_tick(axes: Axes, place: float, at: float, text: str, color: str = _DARK) -> None:
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "boxstyle": "round,pad=0.12"}
    axes.text(place + 0.03, at, text, fontsize=8, color=color, va="center", zorder=7, bbox=box, **_TEXT)


def _choose_ticks(column: dict[str, Any]) -> list[tuple[float, str]]:
    """Return the tick positions of an axis, from 0 to 1, with their labels."""
    low, high = column["low"], column["high"]
    if column["kind"] == "category":
        names = [shorten_middle(name, 16) for name in column["categories"]]
        if len(names) == 1:
            return [(0.5, names[0])]
        step = max(1, math.ceil(len(names) / _MOST_TICKS))
        return [(index / (len(names) - 1), names[index]) for index in range(0, len(names), step)]
    if low == high:
        return [(0.5, format_label(low))]
    if column["marks"]:
        values = [value for value in column["marks"] if low <= value <= high]
    elif column["log"]:
        values = _powers_of_ten(low, high)
    else:
        nice = MaxNLocator(nbins=6, integer=column["kind"] == "integer").tick_values(low, high)
        values = [float(value) for value in nice if low <= value <= high] or [low, high]
    if column["log"]:
        return [(math.log(value / low) / math.log(high / low), _format_number(value)) for value in values]
    return [((value / 2 - low / 2) / (high / 2 - low / 2), _format_number(value)) for value in values]


def _powers_of_ten(low: float, high: float) -> list[float]:
    """Return the powers of ten in an interval, plus 2 and 5 times these if there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        values = [f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d <= high]
        if len(values) >= 3:
            return values[:: math.ceil(len(values) / 8)]
    return [low, high]


def _format_number(value: float) -> str:
    text = f"{value:.4g}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def _line_points(line: dict[str, Any], columns: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    path = []
    for place, (at, column) in enumerate(zip(line["points"], columns, strict=True)):
        y = _GAP if at is None else at
        if at is None or column["kind"] == "category":
            # Spread trials with the same option; the position is the same in every drawing.
            room = 0.5 / max(len(column["categories"]), 8)
            text = f"{line['trial_id']} {place}".encode(errors="replace")
            y += room * (hashlib.blake2b(text, digest_size=4).digest()[0] / 255 - 0.5)
        path.append((float(place), y))
    return path


def _draw_curves(axes: Axes, data: dict[str, Any]) -> None:
    lines = [line for line in data["lines"] if line["points"]]
    metric = shorten_middle(data["metric"], 40)
    _set_title(axes, f"{metric} of each trial")
    axes.set_xlabel("training_iteration", **_TEXT)
    axes.set_ylabel(metric, **_TEXT)
    if not any(value is not None for line in lines for _, value in line["points"]):
        _draw_message(axes, f"no trial reported a finite {metric}")
        return
    scale, colors = data["scale"], _MetricColors(data["colors"], data["mode"])
    for group, drawn in _group_lines({**data, "lines": lines}):
        _draw_group(axes, group, drawn, colors, len(lines))
    low, high = scale["low"], scale["high"]
    if scale["log"]:
        axes.set_yscale("log")
        axes.set_ylim(low / (high / low) ** 0.05, high * (high / low) ** 0.05)
    else:
        margin = (high / 2 - low / 2) / 10 or abs(low) / 10 or 1
        axes.set_ylim(low - margin, high + margin)
    iterations = [iteration for line in lines for iteration, _ in line["points"]]
    room = (max(iterations) - min(iterations)) * 0.03 or 1
    axes.set_xlim(min(iterations) - room, max(iterations) + room)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    _draw_legend(axes, {**data, "lines": lines})


def _draw_group(axes: Axes, group: str, drawn: Sequence[dict[str, Any]], colors: _MetricColors, total: int) -> None:
    """Draw curves of the same style, and a dot for a curve of a single point."""
    if not drawn:
        return
    style = _line_style(group, total)
    paths = [[(at, math.nan if value is None else value) for at, value in line["points"]] for line in drawn]
    shades = colors.shades_of(group, drawn)
    axes.add_collection(LineCollection(paths, colors=shades, gid=group, **style))
    dots = [
        (*point, shade)
        for path, shade in zip(paths, shades, strict=True)
        for point in path
        if len(path) == 1 or (group == "best" and len(path) <= _MOST_DOTS)
    ]
    if dots:
        at, values, dot_shades = zip(*dots, strict=True)
        size = 18 if group == "best" else 8
        axes.scatter(at, values, s=size, c=dot_shades, alpha=style["alpha"], zorder=style["zorder"])


def _draw_importance(axes: Axes, data: dict[str, Any]) -> None:
    _set_title(axes, f"importance for {shorten_middle(data['metric'], 30)}")
    if data["note"] is not None:
        _draw_message(axes, data["note"])
        return
    rows = data["parameters"][:_MOST_BARS]
    bars = axes.barh(range(len(rows)), [row["importance"] for row in rows], color=_BAR, height=0.65)
    axes.set_yticks(range(len(rows)), [_format_name(row["name"], 24) for row in rows], **_TEXT)
    axes.invert_yaxis()
    axes.bar_label(bars, labels=[f"{row['importance']:.2f}" for row in rows], padding=3, fontsize=8)
    axes.set_xlim(0, max(row["importance"] for row in rows) * 1.18)
    axes.spines[["top", "right"]].set_visible(False)
    num_omitted = len(data["parameters"]) - len(rows)
    axes.set_xlabel(f"share (and {num_omitted} more)" if num_omitted else "share")


class _MetricColors:
    """Colors trials by their metric: better is darker."""

    def __init__(self, scale: dict[str, Any], mode: str) -> None:
        low, high = scale["low"], scale["high"]
        if high == low:
            high = low + (abs(low) / 10 or 1)
        self._norm: Normalize = LogNorm(low, high, clip=True) if scale["log"] else Normalize(low, high, clip=True)
        self._extend = "neither" if not scale["is_cut"] else "max" if mode == "min" else "min"
        # Without the light end, which is invisible on white.
        viridis = mpl.colormaps["viridis"]
        ramp = LinearSegmentedColormap.from_list("paceline", [viridis(0.9 * step / 63) for step in range(64)])
        self._map = ramp if mode == "min" else ramp.reversed()

    def shades_of(self, group: str, lines: Sequence[dict[str, Any]]) -> list[Any]:
        if group == "best":
            return [_BEST] * len(lines)
        return [_GREY if line["value"] is None else self._map(self._norm(line["value"])) for line in lines]

    def draw_bar(self, fig: Figure, axes: Axes, metric: str) -> None:
        mappable = ScalarMappable(self._norm, self._map)
        bar = fig.colorbar(mappable, ax=axes, pad=0.01, fraction=0.03, extend=self._extend)
        bar.set_label(metric, **_TEXT)
        bar.outline.set_visible(False)


def _group_lines(data: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Group the lines in drawing order: the best trial on top, and better over worse within each group."""
    groups: dict[str, list[dict[str, Any]]] = {"odd": [], "stopped": [], "whole": [], "best": []}
    for line in data["lines"]:
        if line["trial_id"] == data["best"]:
            groups["best"].append(line)
        elif line["value"] is None or line["status"] == "ERROR":
            groups["odd"].append(line)
        else:
            groups["stopped" if line["status"] == "STOPPED" else "whole"].append(line)
    for name in ("stopped", "whole"):
        groups[name].sort(key=lambda line: line["value"], reverse=data["mode"] == "min")
    return [*groups.items()]


def _line_style(group: str, total: int) -> dict[str, Any]:
    faint = max(0.12, min(0.85, 60 / max(total, 1)))
    return {
        "odd": {"linewidths": 0.6, "alpha": max(faint, 0.3), "linestyles": ":", "zorder": 1},
        "stopped": {"linewidths": 0.5, "alpha": faint * 0.8, "linestyles": "-", "zorder": 2},
        "whole": {"linewidths": 1.3 if total <= 200 else 0.9, "alpha": faint, "linestyles": "-", "zorder": 3},
        "best": {"linewidths": 2.6, "alpha": 1.0, "linestyles": "-", "zorder": 5},
    }[group]


def _draw_legend(axes: Axes, data: dict[str, Any], above: bool = False) -> None:
    groups = {group: drawn for group, drawn in _group_lines(data) if drawn}
    names = {"whole": "finished", "stopped": "stopped early", "odd": "failed, or not finite"}
    handles = []
    for line in groups.get("best", ()):
        text = f"best: trial {shorten_middle(line['trial_id'], 16)}, {_format_number(line['value'])}"
        handles.append(Line2D([], [], color=_BEST, linewidth=2.6, label=text))
    for group, text in names.items():
        if group in groups:
            style = _line_style(group, 1)
            shade = _GREY if group == "odd" else _DARK
            width = max(style["linewidths"], 0.8)
            handles.append(Line2D([], [], color=shade, linewidth=width, linestyle=style["linestyles"], label=text))
    if not handles:
        return
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 4} if above else {"loc": "best"}
    legend = axes.legend(handles=handles, fontsize=8, frameon=not above, **place)
    for written in legend.get_texts():
        written.set(**_TEXT)


def _format_name(text: str, length: int) -> str:
    return shorten_middle(text, length).strip() or "(no name)"


def _set_title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11, **_TEXT)


def _draw_message(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    text = textwrap.fill(text, 36)
    axes.text(0.5, 0.5, text, ha="center", va="center", color=_DARK, transform=axes.transAxes, **_TEXT)
