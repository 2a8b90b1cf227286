"""Estimates how fast a run goes and when it will finish, from its reports and its configuration.

Epochs and steps come from metrics with the usual names; their goal comes from configuration keys with the usual names.
A counter that goes backwards or past its goal is ignored. Uses no clocks and no files: the caller passes the time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

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
_METRIC_PREFIXES = ("", "train", "trainer")
_CONFIG_PREFIXES = ("", "trainer", "training", "train", "fit")
"""Dictionaries of a configuration that may contain them."""

WINDOW_S = 60.0
MIN_SAMPLES = 6
"""A rate covers the last minute, or this many reports if they are rarer."""
MIN_SAMPLE_GAP_S = 0.2
"""Of reports that arrive faster, one per interval is used."""


class PaceEstimate(msgspec.Struct, frozen=True):
    """Fields are None if unknown."""

    reports_per_s: float | None = None
    steps_per_s: float | None = None
    epochs_per_s: float | None = None
    progress: float | None = None
    """From 0 to 1."""
    left_s: float | None = None
    kind: Kind | None = None
    """The unit of `progress`, `done` and `goal`."""
    done: float | None = None
    goal: float | None = None


class _PaceSample(NamedTuple):
    at: float
    counts: tuple[float | None, ...]
    """The report's number, then the value of each kind."""


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


class PaceEstimator:
    """Receives reports in order, and estimates how fast they came lately at any time."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._goals = {kind: find_goal(config or {}, kind) for kind in COUNTERS}
        self._counters: dict[Kind, _ProgressCounter] = {kind: _ProgressCounter() for kind in COUNTERS}
        self._attempt: int | None = None
        self._samples: deque[_PaceSample] = deque()

    def add_report(self, at: float, seq: int, metrics: Mapping[str, Any], attempt: int = 0) -> None:
        """Add a report: its time, its number, and its attempt."""
        if attempt != self._attempt:
            # Reports that an attempt repeats tell nothing about the current rate.
            self._attempt = attempt
            self._samples.clear()
            for counter in self._counters.values():
                counter.before = None
        counts = tuple(self._read_count(kind, seq, metrics) for kind in COUNTERS)
        sample = _PaceSample(at, (float(seq), *counts))
        samples = self._samples
        if samples and at <= samples[-1].at:
            # No later than the previous one by the reporter's clock: merge the two.
            samples[-1] = _PaceSample(samples[-1].at, sample.counts)
            return
        if len(samples) >= 2 and at - samples[-2].at < MIN_SAMPLE_GAP_S:
            samples[-1] = sample
        else:
            samples.append(sample)
        while len(samples) > MIN_SAMPLES and samples[1].at < at - WINDOW_S:
            samples.popleft()

    def estimate(self, at: float) -> PaceEstimate:
        if not self._samples:
            return PaceEstimate()
        since = max(0.0, at - self._samples[-1].at)
        rates: dict[Kind, float | None] = {}
        best = PaceEstimate()
        for index, kind in enumerate(COUNTERS, 1):
            rates[kind] = None if self._counters[kind].is_void else self._estimate_rate(index, since)
            done, of = self._count_done(kind, index), self._goals[kind]
            if done is None or of is None or not 0 <= done <= of:
                continue
            if best.progress is None or done / of > best.progress:
                left_s = self._estimate_left_s(of - done, rates[kind], index, since)
                best = PaceEstimate(progress=done / of, left_s=left_s, kind=kind, done=done, goal=of)
        steps = rates["step"] if rates["step"] is not None else rates["iteration"]
        reports = self._estimate_rate(0, since)
        return replace(best, reports_per_s=reports, steps_per_s=steps, epochs_per_s=rates["epoch"])

    def _read_count(self, kind: Kind, seq: int, metrics: Mapping[str, Any]) -> float | None:
        counter = self._counters[kind]
        if counter.name is None:
            counter.name = next((name for name in _COUNTERS[kind] if _find_number(metrics, name) is not None), None)
        value = _find_number(metrics, counter.name) if counter.name is not None else None
        if value is None:
            return None
        if counter.before is not None and value < counter.before:
            counter.is_void = True
        counter.before = value
        counter.is_number_of_report = counter.is_number_of_report and value == seq - 1
        return value

    def _count_done(self, kind: Kind, index: int) -> float | None:
        counter, counts = self._counters[kind], self._counts(index)
        if counter.is_void or not counts:
            return None
        return counts[-1][1] + 1 if counter.is_number_of_report else counts[-1][1]

    def _counts(self, index: int) -> list[tuple[float, float]]:
        """Return the time and the count of each sample that has it."""
        return [(sample.at, count) for sample in self._samples if (count := sample.counts[index]) is not None]

    def _estimate_rate(self, index: int, since: float) -> float | None:
        """Return the rate per second; it drops when the next report is overdue."""
        counts = self._counts(index)
        if len(counts) < 2:
            return None
        took, more = counts[-1][0] - counts[0][0], counts[-1][1] - counts[0][1]
        if took <= 0 or more < 0:
            return None
        return more / (took + max(0.0, since - self._longest_gap_s(index)))

    def _longest_gap_s(self, index: int) -> float:
        return max(later - earlier for (earlier, _), (later, _) in pairwise(self._counts(index)))

    def _estimate_left_s(self, rest: float, rate: float | None, index: int, since: float) -> float | None:
        if rest == 0:
            return 0.0
        if not rate:
            return None
        left_s = rest / rate - min(since, self._longest_gap_s(index))
        return max(0.0, left_s) if math.isfinite(left_s) else None


def find_goal(config: Mapping[str, Any], kind: Kind) -> float | None:
    """Return the number a run counts up to, if its configuration has one."""
    return next((goal for name in _GOALS[kind] if (goal := _find_number(config, name))), None)


def _expand_names(of_kinds: Mapping[Kind, tuple[str, ...]], within: tuple[str, ...]) -> dict[Kind, tuple[str, ...]]:
    return {
        kind: tuple(f"{outer}/{name}" if outer else name for outer in within for name in names)
        for kind, names in of_kinds.items()
    }


_COUNTERS = _expand_names(COUNTERS, _METRIC_PREFIXES)
_GOALS = _expand_names(GOALS, _CONFIG_PREFIXES)


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
