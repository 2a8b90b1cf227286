"""What the plots of a search show, as plain data, and `plot`, which draws it.

`parallel_coordinates`, `curves` and `importance` give dicts of numbers and texts that are JSON as they are: what is nan
or infinite is None in them. Whoever draws, here or on a web page, decides nothing about the trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from paceline.tune.columns import Column, columns, shortened
from paceline.tune.importance import importances

if TYPE_CHECKING:
    from paceline.tune.drawing import Figure

Kind = Literal["all", "parallel", "importance", "curves"]
KINDS = ("all", "parallel", "importance", "curves")

_LOG_SPAN = 100
_LARGEST = 1e100
"""What is larger counts as infinite: no axis could be drawn that far."""
_USUAL = 0.9
_FAR = 4
"""The worst tenth is far off if with it the values span more than this many times as much."""
_MOST_MARKS = 8
"""So few different numbers are each marked on their axis."""


@dataclass(frozen=True)
class PlottedTrial:
    """What is plotted of a trial."""

    trial_id: str
    config: Mapping[str, Any]
    history: Sequence[tuple[int, float]] = ()
    """The metric of each report, with its iteration."""
    value: float | None = None
    """The metric that the trial is judged by: that of its last report, or of its best."""
    status: str = "TERMINATED"
    """As a `Trial` has it; `STOPPED` is one that a scheduler ended. It is shown as a whole one if no other trial has
    made more iterations: schedulers also end trials that have had all the time there is."""


def parallel_coordinates(
    trials: Sequence[PlottedTrial],
    metric: str = "value",
    mode: str = "min",
    space: Mapping[str, Any] | None = None,
    parameters: Sequence[str] | None = None,
) -> dict[str, Any]:
    """A line for each trial through an axis for each parameter; the last axis is the metric.

    A point is where the line meets an axis, from 0 to 1, and None where the trial does not have that parameter, or its
    metric is not finite. Values that are far worse than the rest meet the axis of the metric at its end. `parameters`
    says which, in which order; else it is all that differ.
    """
    _check(mode)
    found = {column.name: column for column in columns([trial.config for trial in trials], space)}
    for name in parameters or ():
        if name not in found:
            raise ValueError(
                f"parameters has {name!r}, which is not one that differs among the trials: these are "
                f"{', '.join(found) or 'none'}"
            )
    shown = [found[name] for name in parameters] if parameters is not None else [*found.values()]
    values = [_finite(trial.value) for trial in trials]
    scale = scaled(values, mode)
    shown.append(Column(metric, "float", scale["log"], tuple(values)))
    axes = [_axis(column) for column in shown]
    axes[-1].update(scale)
    farthest = _farthest(trials)
    places = [_places(column.values, axis) for column, axis in zip(shown, axes, strict=True)]
    return {
        "metric": metric,
        "mode": mode,
        "best": best(trials, mode),
        "axes": axes,
        "lines": [
            {
                "trial_id": trial.trial_id,
                "status": _status(trial, farthest),
                "value": values[index],
                "points": [place[index] for place in places],
            }
            for index, trial in enumerate(trials)
        ],
    }


def curves(trials: Sequence[PlottedTrial], metric: str = "value", mode: str = "min") -> dict[str, Any]:
    """The metric of each trial over its iterations."""
    _check(mode)
    farthest = _farthest(trials)
    return {
        "metric": metric,
        "mode": mode,
        "best": best(trials, mode),
        "scale": scaled([_finite(value) for trial in trials for _, value in trial.history], mode),
        "colors": scaled([_finite(trial.value) for trial in trials], mode),
        "lines": [
            {
                "trial_id": trial.trial_id,
                "status": _status(trial, farthest),
                "value": _finite(trial.value),
                "points": [[int(iteration), _finite(value)] for iteration, value in trial.history],
            }
            for trial in trials
        ],
    }


def importance(
    trials: Sequence[PlottedTrial],
    metric: str = "value",
    mode: str = "min",
    space: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """How much each parameter matters, the most important first; `note` says why there is nothing, if so."""
    _check(mode)
    note = None
    shares: dict[str, float] = {}
    try:
        shares = importances([(trial.config, trial.value) for trial in trials], mode, space)
    except ValueError as error:
        note = str(error)
    if note is None and not shares:
        note = "no parameter differs among the trials"
    elif note is None and not any(shares.values()):
        note = "no parameter makes a difference"
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
    """A matplotlib figure: `fig.savefig("search.png")` writes it, and a notebook shows it.

    `kind` is "parallel", "importance", "curves", or "all" of them. `space` tells which axes are logarithmic. Neither
    pyplot nor the backend is touched, so there is nothing to close.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not one of {', '.join(map(repr, KINDS))}")
    _check(mode)
    try:
        from paceline.tune import drawing
    except ImportError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise ImportError(
            f'plot() needs the package matplotlib: {error}\n\nhint: pip install "paceline[tune]"', name="matplotlib"
        ) from error
    return drawing.figure(
        parallel_coordinates(trials, metric, mode, space, parameters) if kind in ("all", "parallel") else None,
        importance(trials, metric, mode, space) if kind in ("all", "importance") else None,
        curves(trials, metric, mode) if kind in ("all", "curves") else None,
        figsize,
    )


def best(trials: Sequence[PlottedTrial], mode: str) -> str | None:
    """The trial with the best finite value; of equals, the first."""
    judged = [(value, trial.trial_id) for trial in trials if (value := _finite(trial.value)) is not None]
    if not judged:
        return None
    return (min if mode == "min" else max)(judged, key=lambda item: item[0])[1]


def scaled(values: Sequence[float | None], mode: str) -> dict[str, Any]:
    """The bounds within which these values are told apart, and whether by magnitude.

    The worst tenth is cut off where it would leave the others no room: `is_cut`.
    """
    finite = sorted(value for value in values if value is not None)
    if not finite:
        return {"low": 0.0, "high": 1.0, "log": False, "is_cut": False}
    worst = int(_USUAL * (len(finite) - 1))
    low, high = (finite[0], finite[worst]) if mode == "min" else (finite[-1 - worst], finite[-1])
    log = low > 1 / _LARGEST and high / low >= _LOG_SPAN
    usual, whole = (_distance(*pair, log and finite[0] > 0) for pair in ((low, high), (finite[0], finite[-1])))
    is_cut = whole > _FAR * usual > 0
    if not is_cut:
        low, high = finite[0], finite[-1]
    return {"low": low, "high": high, "log": log and low > 0, "is_cut": is_cut}


def _farthest(trials: Sequence[PlottedTrial]) -> int:
    return max((iteration for trial in trials for iteration, _ in trial.history), default=0)


def _status(trial: PlottedTrial, farthest: int) -> str:
    is_whole = bool(trial.history) and trial.history[-1][0] >= farthest
    return "TERMINATED" if trial.status == "STOPPED" and is_whole else trial.status


def _distance(low: float, high: float, log: bool) -> float:
    # Halves, since the difference of two floats may be larger than any float.
    return math.log(high) - math.log(low) if log else high / 2 - low / 2


def _axis(column: Column) -> dict[str, Any]:
    low, high = _bounds(column)
    return {
        "name": column.name,
        "label": shortened(column.name),
        "kind": column.kind,
        "log": column.log,
        "low": low,
        "high": high,
        "marks": sorted({*column.present})
        if column.kind != "category" and len({*column.present}) <= _MOST_MARKS
        else [],
        "is_cut": False,
        "categories": [*column.categories],
        "has_gaps": None in column.values,
    }


def _bounds(column: Column) -> tuple[float, float]:
    if column.kind == "category":
        return 0, max(len(column.categories) - 1, 0)
    present = column.present
    return (min(present), max(present)) if present else (0, 1)


def _places(values: Sequence[float | None], axis: Mapping[str, Any]) -> list[float | None]:
    """Where each trial meets the axis, from 0 to 1."""
    low, high, log = axis["low"], axis["high"], axis["log"]
    if low == high:
        return [None if value is None else 0.5 for value in values]
    whole = _distance(low, high, log)
    inside = [None if value is None else min(max(value, low), high) for value in values]
    return [None if value is None else _distance(low, value, log) / whole for value in inside]


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and abs(value) <= _LARGEST else None


def _check(mode: str) -> None:
    if mode not in ("min", "max"):
        raise ValueError(f"mode={mode!r} is neither 'min' nor 'max'")
