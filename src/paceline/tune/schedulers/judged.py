"""What schedulers that compare trials have in common: the metric, its direction, and how far a trial is.

A value is compared as a score, of which more is better in either mode. nan is the worst there is, and an infinite loss
is as bad. A report without the metric, or without `time_attr`, or where one of them is no number, is not judged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from paceline._core.plain import looked_up
from paceline.tune.schedulers.scheduler import TrialScheduler

log = logging.getLogger("paceline")

WORST = -math.inf
"""The score of nan."""

_LARGEST = 10**300


class JudgingScheduler(TrialScheduler):
    """Base of schedulers that compare trials by one metric at equal times."""

    def __init__(self, time_attr: str, metric: str | None, mode: str | None) -> None:
        if not isinstance(time_attr, str) or not time_attr:
            raise ValueError(f"time_attr={time_attr!r} is not the name of a number in the reports")
        self.time_attr = time_attr
        self.metric = metric
        self.mode = mode
        self._check_metric()
        self._has_warned = False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        agreed = super().set_search_properties(metric, mode, **spec)
        self._check_metric()
        return agreed

    def needed_metric(self) -> str:
        """The metric; an error where there is none, or no mode."""
        if self.metric is None or self.mode is None:
            name = type(self).__name__
            raise ValueError(
                f"{name} compares trials, and has metric={self.metric!r}, mode={self.mode!r}\n\n"
                f"hint: TuneConfig(metric='loss', mode='min'), or {name}(metric='loss', mode='min')"
            )
        return self.metric

    def time_of(self, trial_id: str, result: Mapping[str, Any]) -> float | None:
        """How far the trial is; None where the report does not tell, which is said once."""
        time = number_of(result, self.time_attr)
        if time is not None and is_finite(time):
            return time
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: a report of trial %s has no number under time_attr=%r, so it is not judged. It has %s",
                type(self).__name__,
                trial_id,
                self.time_attr,
                ", ".join(map(str, result)),
            )
        return None

    def score_of(self, result: Mapping[str, Any]) -> float | None:
        """The metric so that more is better, None where there is none."""
        value = number_of(result, self.needed_metric())
        if value is None:
            return None
        if value != value:
            return WORST
        return value if self.mode == "max" else -value

    def spoken(self, score: float) -> str:
        """A score as the metric's value, for a person."""
        if score == WORST:
            return "nan"
        return short(score if self.mode == "max" else -score)

    def placed(self, result: Mapping[str, Any], time: float) -> str:
        """What a report says, for a person: `loss 0.5 at training_iteration 4`."""
        value = number_of(result, self.needed_metric())
        return f"{self.metric} {'nan' if value is None else short(value)} at {self.time_attr} {short(time)}"

    def _check_metric(self) -> None:
        if not isinstance(self.metric, str | None):
            raise ValueError(f"metric={self.metric!r}: {type(self).__name__} compares trials by the name of one metric")
        if self.mode not in (None, "min", "max"):
            raise ValueError(f"mode={self.mode!r} is neither 'min' nor 'max'")


def number_of(result: Mapping[str, Any], name: str) -> float | None:
    """A number in a report, by name or by a path such as `eval/loss`."""
    value = looked_up(result if isinstance(result, dict) else dict(result), name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value


def is_finite(value: float) -> bool:
    """Neither nan nor infinite. `math.isfinite` knows no integer that is larger than any float."""
    return value == value and abs(value) != math.inf


def short(value: float) -> str:
    """A number for a person."""
    if isinstance(value, int):
        if abs(value) >= _LARGEST:  # Some are larger than any float.
            return "more than 1e300" if value > 0 else "less than -1e300"
        return str(value) if abs(value) < 10**15 else f"{value:.4g}"
    return f"{value:.4g}"


def checked_number(name: str, value: Any, least: float, *, above: bool = False, whole: bool = False) -> Any:
    """A number that an argument has to be, or a `ValueError` that says which."""
    kind = int if whole else (int, float)
    is_number = not isinstance(value, bool) and isinstance(value, kind) and is_finite(value)
    if is_number and (value > least or (value == least and not above)):
        return value
    what = "a whole number" if whole else "a number"
    raise ValueError(f"{name}={value!r} is not {what} {f'above {least:g}' if above else f'of {least:g} or more'}")
