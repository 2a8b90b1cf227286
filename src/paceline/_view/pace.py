"""Estimates how fast a run goes and when it will finish, from its reports and its configuration.

Epochs and steps come from metrics with the usual names; their goal comes from configuration keys with the usual names,
or from metrics with those names that stay the same. A metric `progress` from 0 to 1 is taken as it is. If no metric
counts, the position in the training dataset does, if its length is known. A counter that goes backwards or past its
goal is ignored. Uses no clocks and no files: the caller passes the time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from paceline._view.journal.report_table import ReportTable

Kind = Literal["epoch", "step", "iteration"]

COUNTERS: dict[Kind, tuple[str, ...]] = {
    "epoch": ("epoch", "epochs", "current_epoch", "num_epoch"),
    "step": ("global_step", "step", "steps", "total_step", "num_steps"),
    "iteration": ("iteration", "iter", "training_iteration", "boost_round", "round"),
}
"""Names of metrics that count, best first."""
GOALS: dict[Kind, tuple[str, ...]] = {
    "epoch": ("num_epochs", "epochs", "max_epochs", "n_epochs", "total_epochs", "num_train_epochs"),
    "step": ("max_steps", "num_steps", "total_steps", "n_steps", "steps", "num_train_steps", "max_train_steps"),
    "iteration": ("num_iterations", "max_iterations", "iterations", "max_iters", "num_boost_round", "num_rounds"),
}
"""Configuration keys that hold the goal."""
_PROGRESS = "progress"
_ROWS = "rows"
"""Epochs of the training dataset, by its position."""
_METRIC_PREFIXES = ("", "train", "trainer")
_CONFIG_PREFIXES = ("", "trainer", "training", "train", "fit")
"""Dictionaries of a configuration that may contain them."""

WINDOW_S = 60.0
MIN_SAMPLES = 6
"""A rate covers the last minute, or this many reports if they are rarer."""
MIN_SAMPLE_GAP_S = 0.2
"""Of reports that arrive faster, one per interval is used."""
NUM_SAMPLES = 50
"""Of many reports, about this many are used."""
_MAX_PACED_REPORTS = 100_000
"""How many of the last reports are used."""


class PaceEstimate(msgspec.Struct, frozen=True):
    """Fields are None if unknown."""

    reports_per_s: float | None = None
    steps_per_s: float | None = None
    epochs_per_s: float | None = None
    progress: float | None = None
    """From 0 to 1."""
    left_s: float | None = None
    kind: Kind | None = None
    """The unit of `done` and `goal`; all three are None if the progress itself was reported."""
    done: float | None = None
    goal: float | None = None


class _CountSample(NamedTuple):
    at: float
    value: float


class _CountSeries:
    """Recent values of a counter and when they were first reported, in one attempt."""

    def __init__(self) -> None:
        self._samples: deque[_CountSample] = deque()
        self.begins_late = False
        """The first value may have been reported before, by an earlier attempt."""
        self.is_repeated = False
        """Several reports had the same value: they were made within what it counts."""

    def add(self, at: float, count: float) -> None:
        samples = self._samples
        if samples and (at <= samples[-1].at or count == samples[-1].value):
            # The same count, or no later than the previous one by the reporter's clock: merge the two.
            samples[-1] = _CountSample(samples[-1].at, count)
        elif len(samples) >= 2 and at - samples[-2].at < MIN_SAMPLE_GAP_S:
            samples[-1] = _CountSample(at, count)
        else:
            samples.append(_CountSample(at, count))
        while len(samples) > MIN_SAMPLES and samples[1].at < at - WINDOW_S:
            samples.popleft()
            self.begins_late = False

    @property
    def last(self) -> _CountSample | None:
        return self._samples[-1] if self._samples else None

    def estimate_rate(self, at: float) -> float | None:
        """Return the rate per second; it drops when the next count is overdue."""
        samples = self._whole_samples()
        if len(samples) < 2:
            return None
        took, more = samples[-1].at - samples[0].at, samples[-1].value - samples[0].value
        if took <= 0 or more < 0:
            return None
        return more / (took + max(0.0, at - samples[-1].at - self._longest_gap_s()))

    def estimate_left_s(self, rest: float, at: float) -> float | None:
        """Estimate when the count will be higher by `rest`."""
        if rest == 0:
            return 0.0
        rate = self.estimate_rate(at)
        if not rate:
            return None
        left_s = rest / rate - min(max(0.0, at - self._samples[-1].at), self._longest_gap_s())
        return max(0.0, left_s) if math.isfinite(left_s) else None

    def _whole_samples(self) -> list[_CountSample]:
        """Return those that began when they were first reported."""
        return [*self._samples][1 if self.begins_late and self.is_repeated else 0 :]

    def _longest_gap_s(self) -> float:
        return max(later.at - earlier.at for earlier, later in pairwise(self._whole_samples()))


@dataclass
class _ProgressCounter:
    """A counter of one kind, over all attempts."""

    name: str | None = None
    before: float | None = None
    """The last value reported in this attempt."""
    is_number_of_report: bool = True
    """Every value so far was the report's number minus one: it counts from 0, and the reported item is already done."""
    is_void: bool = False
    """It went backwards."""
    series: _CountSeries = field(default_factory=_CountSeries)

    def start_attempt(self) -> None:
        is_repeated = self.series.is_repeated
        self.before, self.series = None, _CountSeries()
        self.series.is_repeated = is_repeated

    def add(self, at: float, seq: int, value: float) -> None:
        if self.before is None:
            self.series.begins_late = seq > 1
        else:
            self.is_void = self.is_void or value < self.before
            self.series.is_repeated = self.series.is_repeated or value == self.before
        self.before = value
        self.is_number_of_report = self.is_number_of_report and value == seq - 1
        self.series.add(at, value)


class PaceEstimator:
    """Receives reports in order, and estimates how fast they came lately at any time."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        void: Collection[str] = (),
        first_metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """If not all reports are added: the metrics that went backwards, and the first report of the run."""
        self._goals = {kind: find_goal(config or {}, kind) for kind in COUNTERS}
        self._reported_goals: dict[Kind, set[float]] = {kind: set() for kind in COUNTERS}
        self._counters = {source: _ProgressCounter() for source in (*COUNTERS, _PROGRESS, _ROWS)}
        self._reports = _CountSeries()
        self._void = void
        self._first_metrics = first_metrics or {}
        self._attempt: int | None = None

    def add_report(
        self,
        at: float,
        seq: int,
        metrics: Mapping[str, Any],
        attempt: int = 0,
        dataset_epochs: float | None = None,
        *,
        is_recent: bool = True,
    ) -> None:
        """Add a report: its time, its number, its attempt, and how many epochs of the training dataset are used.

        One that is not recent, because others were left out after it, tells nothing about the rate of reports.
        """
        if attempt != self._attempt:
            # Reports that an attempt repeats tell nothing about the current rate.
            self._attempt, self._reports = attempt, _CountSeries()
            for counter in self._counters.values():
                counter.start_attempt()
        if seq == 1:
            self._first_metrics = metrics
        if is_recent:
            self._reports.add(at, float(seq))
        for kind, goals in self._reported_goals.items():
            if self._goals[kind] is None and len(goals) < 2:
                goals.update(filter(None, [_find_first(metrics, _REPORTED_GOALS[kind])]))
        for source, counter in self._counters.items():
            value = dataset_epochs if source == _ROWS else self._read_count(source, metrics)
            if value is not None:
                counter.add(at, seq, value)

    def estimate(self, at: float) -> PaceEstimate:
        best = PaceEstimate()
        for kind in COUNTERS:
            found = self._estimate_progress(kind, self._find_goal(kind), at)
            if found.progress is not None and (best.progress is None or found.progress > best.progress):
                best = replace(found, kind=kind)
        told = self._estimate_progress(_PROGRESS, 1.0, at)
        rows = self._estimate_progress(_ROWS, self._find_goal("epoch"), at)
        if told.progress is not None:
            best = replace(told, done=None, goal=None)
        elif best.progress is None and rows.progress is not None:
            best = replace(rows, kind="epoch")
        steps = self._estimate_rate("step", at)
        return replace(
            best,
            reports_per_s=self._reports.estimate_rate(at),
            steps_per_s=steps if steps is not None else self._estimate_rate("iteration", at),
            epochs_per_s=self._estimate_rate("epoch", at),
        )

    def _find_goal(self, kind: Kind) -> float | None:
        reported = self._reported_goals[kind]
        return self._goals[kind] or (next(iter(reported)) if len(reported) == 1 else None)

    def _estimate_rate(self, kind: Kind, at: float) -> float | None:
        counter = self._counters[kind]
        return None if counter.is_void else counter.series.estimate_rate(at)

    def _estimate_progress(self, source: str, goal: float | None, at: float) -> PaceEstimate:
        done = self._count_done(source)
        if done is None or goal is None or not 0 <= done <= goal:
            return PaceEstimate()
        left_s = self._counters[source].series.estimate_left_s(goal - done, at)
        return PaceEstimate(progress=done / goal, left_s=left_s, done=done, goal=goal)

    def _read_count(self, source: str, metrics: Mapping[str, Any]) -> float | None:
        counter = self._counters[source]
        if counter.name is None:
            counter.name = next((name for name in _COUNTERS[source] if _find_number(metrics, name) is not None), None)
        if counter.name is None:
            return None
        counter.is_void = counter.is_void or counter.name in self._void
        return _find_number(metrics, counter.name)

    def _count_done(self, source: str) -> float | None:
        counter = self._counters[source]
        if counter.is_void or counter.series.last is None:
            return None
        count = counter.series.last.value
        if source not in COUNTERS:
            return count
        if counter.is_number_of_report:
            return count + 1
        # Reports within the first one had the number 1, so what the last number counts is not done either.
        begins_at_one = counter.name is not None and _find_number(self._first_metrics, counter.name) == 1
        return count - 1 if counter.series.is_repeated and begins_at_one else count


def find_goal(config: Mapping[str, Any], kind: Kind) -> float | None:
    """Return the number a run counts up to, if its configuration has one."""
    return _find_first(config, _GOALS[kind]) if config else None


def choose_rows(reports: ReportTable) -> list[int]:
    """Choose the rows of recent reports that an estimate needs, or a sample if they are many."""
    num_rows = len(reports)
    first = find_first_recent(reports)
    rows = {*range(first, num_rows, max(1, (num_rows - first) // NUM_SAMPLES)), *range(num_rows)[-1:]}
    for name in reports.columns:
        if is_pace_metric(name) and not reports.goes_backwards(name):
            rows.update(reports.last_changes(name, MIN_SAMPLES + 1))
    return sorted(rows)


def find_first_recent(reports: ReportTable) -> int:
    """Find the first row of the last minute, or about so: of a few reports, if they are rarer."""
    num_rows = len(reports)
    first = max(0, num_rows - _MAX_PACED_REPORTS)
    while first < num_rows - MIN_SAMPLES and reports.ats[num_rows - 1] - reports.ats[first] > WINDOW_S:
        first += max(1, (num_rows - MIN_SAMPLES - first) // 8)
    return first


def is_pace_metric(name: str) -> bool:
    """Whether an estimate may need this metric."""
    return name.rpartition("/")[2] in _PACE_METRICS


def _expand_names(of_kinds: Mapping[Any, tuple[str, ...]], within: tuple[str, ...]) -> dict[Any, tuple[str, ...]]:
    return {
        kind: tuple(f"{outer}/{name}" if outer else name for outer in within for name in names)
        for kind, names in of_kinds.items()
    }


_COUNTED = {name for names in COUNTERS.values() for name in names}
_UNCOUNTED_GOALS = {kind: tuple(name for name in names if name not in _COUNTED) for kind, names in GOALS.items()}
"""Names of goals that are never names of counters."""
_COUNTERS = _expand_names({**COUNTERS, _PROGRESS: (_PROGRESS,)}, _METRIC_PREFIXES)
_GOALS = _expand_names(GOALS, _CONFIG_PREFIXES)
_REPORTED_GOALS = _expand_names(_UNCOUNTED_GOALS, _METRIC_PREFIXES)
_PACE_METRICS = {_PROGRESS, *_COUNTED, *(name for names in _UNCOUNTED_GOALS.values() for name in names)}


def _find_first(values: Mapping[str, Any], names: Iterable[str]) -> float | None:
    """Return the first number that is not zero."""
    return next((number for name in names if (number := _find_number(values, name))), None)


def _find_number(values: Mapping[str, Any], path: str) -> float | None:
    """Return the value of a name such as `epoch` or `train/epoch`, flat or nested; only finite numbers >= 0."""
    value = values.get(path)
    outer, _, inner = path.partition("/")
    if value is None and inner and isinstance(values.get(outer), Mapping):
        value = values[outer].get(inner)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
