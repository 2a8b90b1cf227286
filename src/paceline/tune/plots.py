"""The data behind the plots of a search, and `plot`, which draws it.

`parallel_coordinates`, `curves` and `importance` return JSON-compatible dicts of numbers and strings; nan and infinity
become None. All decisions about trials are made here, so that a renderer, here or on a web page, only draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from paceline._core.arguments import check_choice
from paceline._core.lazy_imports import import_extra
from paceline.tune.importance import importances
from paceline.tune.results import scopes
from paceline.tune.results.parameter_columns import ParameterColumn, extract_columns, shorten_middle

if TYPE_CHECKING:
    from paceline.tune.display.plot_drawing import Figure

Kind = Literal["all", "parallel", "importance", "curves"]

_LOG_SPAN = 100
_LARGEST = 1e100
"""Larger values count as infinite: no axis could show them."""
_USUAL = 0.9
_FAR = 4
"""The worst tenth is an outlier if including it widens the range more than this many times."""
_MOST_MARKS = 8
"""Up to this many distinct numbers get a tick each."""


@dataclass(frozen=True)
class PlottedTrial:
    """The data of a trial that is plotted."""

    trial_id: str
    config: Mapping[str, Any]
    history: Sequence[tuple[int, float]] = ()
    """The metric of each report, with its iteration."""
    value: float | None = None
    """The value the trial is judged by: that of its last report, or of its best."""
    status: str = "TERMINATED"
    """As in `Trial`; `STOPPED` means that a scheduler ended it. A trial that used all its time is shown as complete."""


def parallel_coordinates(
    trials: Sequence[PlottedTrial],
    metric: str = "value",
    mode: str = "min",
    space: Mapping[str, Any] | None = None,
    parameters: Sequence[str] | None = None,
) -> dict[str, Any]:
    """One line per trial through one axis per parameter; the last axis is the metric.

    Points are positions on an axis, from 0 to 1; None if the trial lacks that parameter or its metric is not finite.
    Outliers, far worse than the rest, are drawn at the end of the metric's axis. `parameters` selects and orders the
    axes; by default all parameters that differ.
    """
    check_choice("mode", mode, ("min", "max"))
    columns = {column.name: column for column in extract_columns([trial.config for trial in trials], space)}
    for name in parameters or ():
        if name not in columns:
            known = ", ".join(columns) or "none"
            raise ValueError(f"unknown name {name!r} in parameters; those that differ among the trials are {known}")
    plotted = [columns[name] for name in parameters] if parameters is not None else [*columns.values()]
    values = [_to_finite(trial.value) for trial in trials]
    scale = compute_scale(values, mode)
    plotted.append(ParameterColumn(metric, "float", scale["log"], tuple(values)))
    axes = [_build_axis(column) for column in plotted]
    axes[-1].update(scale)
    places = [_axis_positions(column.values, axis) for column, axis in zip(plotted, axes, strict=True)]
    points = [[place[index] for place in places] for index in range(len(trials))]
    return {**_build_lines(trials, metric, mode, points), "axes": axes}


def curves(trials: Sequence[PlottedTrial], metric: str = "value", mode: str = "min") -> dict[str, Any]:
    """The metric of each trial over its iterations."""
    check_choice("mode", mode, ("min", "max"))
    points = [[[int(iteration), _to_finite(value)] for iteration, value in trial.history] for trial in trials]
    return {
        **_build_lines(trials, metric, mode, points),
        "scale": compute_scale([_to_finite(value) for trial in trials for _, value in trial.history], mode),
        "colors": compute_scale([_to_finite(trial.value) for trial in trials], mode),
    }


def importance(
    trials: Sequence[PlottedTrial], metric: str = "value", mode: str = "min", space: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """How much each parameter matters, most important first; if there is no result, `note` says why."""
    check_choice("mode", mode, ("min", "max"))
    shares: dict[str, float] = {}
    note: str | None = "no parameter differs among the trials"
    try:
        shares = importances([(trial.config, trial.value) for trial in trials], mode, space)
    except ValueError as error:
        note = str(error)
    if shares:
        note = None if any(shares.values()) else "no parameter makes a difference"
    return {
        "metric": metric,
        "mode": mode,
        "parameters": [{"name": name, "importance": share} for name, share in shares.items()],
        "note": note,
    }


def plot(
    trials: Sequence[PlottedTrial],
    kind: Kind = "all",
    metric: str = "value",
    mode: str = "min",
    space: Mapping[str, Any] | None = None,
    parameters: Sequence[str] | None = None,
    figsize: tuple[float, float] | None = None,
) -> Figure:
    """Draw a matplotlib figure: `fig.savefig("search.png")` writes it, and a notebook displays it.

    `kind` is "parallel", "importance", "curves", or "all" of them. `space` determines which axes are logarithmic. Does
    not use pyplot or select a backend, so there is nothing to close.
    """
    check_choice("kind", kind, get_args(Kind))
    import_extra("matplotlib", "plot()")
    from paceline.tune.display import plot_drawing

    return plot_drawing.draw_figure(
        parallel_coordinates(trials, metric, mode, space, parameters) if kind in ("all", "parallel") else None,
        importance(trials, metric, mode, space) if kind in ("all", "importance") else None,
        curves(trials, metric, mode) if kind in ("all", "curves") else None,
        figsize,
    )


def compute_scale(values: Sequence[float | None], mode: str) -> dict[str, Any]:
    """Compute the bounds of an axis; the worst tenth is cut off if it would leave no room for the others."""
    finite = sorted(value for value in values if value is not None)
    if not finite:
        return {"low": 0.0, "high": 1.0, "log": False, "is_cut": False}
    worst = int(_USUAL * (len(finite) - 1))
    low, high = (finite[0], finite[worst]) if mode == "min" else (finite[-1 - worst], finite[-1])
    log = low > 1 / _LARGEST and high / low >= _LOG_SPAN
    usual, total = (_distance(*pair, log and finite[0] > 0) for pair in ((low, high), (finite[0], finite[-1])))
    is_cut = total > _FAR * usual > 0
    if not is_cut:
        low, high = finite[0], finite[-1]
    return {"low": low, "high": high, "log": log and low > 0, "is_cut": is_cut}


def _build_lines(
    trials: Sequence[PlottedTrial], metric: str, mode: str, points: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    farthest = max((iteration for trial in trials for iteration, _ in trial.history), default=0)

    def effective_status(trial: PlottedTrial) -> str:
        is_complete = bool(trial.history) and trial.history[-1][0] >= farthest
        return "TERMINATED" if trial.status == "STOPPED" and is_complete else trial.status

    lines = [
        {"trial_id": t.trial_id, "status": effective_status(t), "value": _to_finite(t.value), "points": of_trial}
        for t, of_trial in zip(trials, points, strict=True)
    ]
    finite = ((trial.trial_id, value) for trial in trials if (value := _to_finite(trial.value)) is not None)
    best = scopes.select_best(finite, mode)
    return {"metric": metric, "mode": mode, "best": best[0] if best is not None else None, "lines": lines}


def _distance(low: float, high: float, log: bool) -> float:
    # Halved, because the difference of two floats can overflow.
    return math.log(high) - math.log(low) if log else high / 2 - low / 2


def _build_axis(column: ParameterColumn) -> dict[str, Any]:
    present = column.present_values
    marks: list[float] = []
    low, high = (min(present), max(present)) if present else (0, 1)
    if column.kind == "category":
        low, high = 0, max(len(column.categories) - 1, 0)
    elif len({*present}) <= _MOST_MARKS:
        marks = sorted({*present})
    return {
        "name": column.name,
        "label": shorten_middle(column.name),
        "kind": column.kind,
        "log": column.log,
        "low": low,
        "high": high,
        "marks": marks,
        "is_cut": False,
        "categories": [*column.categories],
        "has_gaps": None in column.values,
    }


def _axis_positions(values: Sequence[float | None], axis: Mapping[str, Any]) -> list[float | None]:
    """Return each trial's position on the axis, from 0 to 1."""
    low, high, log = axis["low"], axis["high"], axis["log"]
    if low == high:
        return [None if value is None else 0.5 for value in values]
    length = _distance(low, high, log)
    inside = [None if value is None else min(max(value, low), high) for value in values]
    return [None if value is None else _distance(low, value, log) / length for value in inside]


def _to_finite(value: float | None) -> float | None:
    return float(value) if value is not None and abs(value) <= _LARGEST else None
