"""How fast a run goes and when it will be done, where that can be known: from what it reports and was configured with.

Epochs and steps are counted by metrics with the usual names, and there is an end to them where the configuration has
one of the usual names for it. A counter that goes back, or past its end, is not what its name says and tells nothing.
No clocks and no files: whoever asks says what time it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

Kind = Literal["epoch", "step", "iteration"]

COUNTERS: dict[Kind, tuple[str, ...]] = {
    "epoch": ("epoch", "epochs", "current_epoch", "num_epoch"),
    "step": ("global_step", "step", "steps", "total_step", "num_steps"),
    "iteration": ("iteration", "iter", "training_iteration", "boost_round", "round"),
}
"""Metrics that count, the best first."""
GOALS: dict[Kind, tuple[str, ...]] = {
    "epoch": ("num_epochs", "epochs", "max_epochs", "n_epochs", "total_epochs", "num_train_epochs"),
    "step": ("max_steps", "num_steps", "total_steps", "n_steps", "steps", "num_train_steps", "max_train_steps"),
    "iteration": ("num_iterations", "max_iterations", "iterations", "max_iters", "num_boost_round", "num_rounds"),
}
"""Where a configuration says up to which number."""
_OF_METRICS = ("", "train", "trainer")
_OF_CONFIGURATIONS = ("", "trainer", "training", "train", "fit")
"""The dictionaries in which they may stand."""

WINDOW_S = 60.0
AT_LEAST = 6
"""A rate is that of the last minute, or of so many reports where they are rarer."""
APART_S = 0.2
"""Of reports that follow each other faster, one in so long is looked at."""


class Pacing(NamedTuple):
    """None: not to be known."""

    reports_per_s: float | None = None
    steps_per_s: float | None = None
    epochs_per_s: float | None = None
    progress: float | None = None
    """From 0 to 1."""
    left_s: float | None = None
    kind: Kind | None = None
    """What progress is measured in, with how many of how many."""
    done: float | None = None
    goal: float | None = None


class _Sample(NamedTuple):
    at: float
    counts: tuple[float | None, ...]
    """Of the reports, then of each kind."""


@dataclass
class _Counter:
    """One kind of counting, over all attempts."""

    name: str | None = None
    before: float | None = None
    """The value that was reported last in this attempt."""
    is_number_of_report: bool = True
    """Each value so far was the report's number less one: it counts from 0, what it names is done when it is told."""
    is_void: bool = False
    """It went back."""


class Pace:
    """Hears reports in their order; tells at any time how fast they came lately."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._goals = {kind: goal(config or {}, kind) for kind in COUNTERS}
        self._counters: dict[Kind, _Counter] = {kind: _Counter() for kind in COUNTERS}
        self._attempt: int | None = None
        self._samples: deque[_Sample] = deque()

    def hear(self, at: float, seq: int, metrics: Mapping[str, Any], attempt: int = 0) -> None:
        """A report: when it was made, its number, and the attempt that made it."""
        if attempt != self._attempt:
            # What an attempt makes again was made before: nothing of how fast it goes is known from that.
            self._attempt = attempt
            self._samples.clear()
            for known in self._counters.values():
                known.before = None
        counts = tuple(self._count(kind, seq, metrics) for kind in COUNTERS)
        sample = _Sample(at, (float(seq), *counts))
        samples = self._samples
        if samples and at <= samples[-1].at:
            # Not later by the clock of who reported: it counts, with the one before.
            samples[-1] = _Sample(samples[-1].at, sample.counts)
            return
        if len(samples) >= 2 and at - samples[-2].at < APART_S:
            samples[-1] = sample
        else:
            samples.append(sample)
        while len(samples) > AT_LEAST and samples[1].at < at - WINDOW_S:
            samples.popleft()

    def now(self, at: float) -> Pacing:
        if not self._samples:
            return Pacing()
        since = max(0.0, at - self._samples[-1].at)
        rates: dict[Kind, float | None] = {}
        for index, kind in enumerate(COUNTERS, 1):
            rates[kind] = None if self._counters[kind].is_void else self._rate(index, since)
        best: Pacing | None = None
        for index, kind in enumerate(COUNTERS, 1):
            done, of = self._done(kind, index), self._goals[kind]
            if done is None or of is None or not 0 <= done <= of:
                continue
            if best is None or best.progress is None or done / of > best.progress:
                left = self._left(of - done, rates[kind], index, since)
                best = Pacing(progress=done / of, left_s=left, kind=kind, done=done, goal=of)
        steps = rates["step"] if rates["step"] is not None else rates["iteration"]
        told = best if best is not None else Pacing()
        return told._replace(reports_per_s=self._rate(0, since), steps_per_s=steps, epochs_per_s=rates["epoch"])

    def _count(self, kind: Kind, seq: int, metrics: Mapping[str, Any]) -> float | None:
        counter = self._counters[kind]
        if counter.name is None:
            counter.name = next((name for name in _COUNTERS[kind] if _number(metrics, name) is not None), None)
            if counter.name is None:
                return None
        value = _number(metrics, counter.name)
        if value is None:
            return None
        if counter.before is not None and value < counter.before:
            counter.is_void = True
        counter.before = value
        counter.is_number_of_report = counter.is_number_of_report and value == seq - 1
        return value

    def _done(self, kind: Kind, index: int) -> float | None:
        counter, last = self._counters[kind], self._last(index)
        if counter.is_void or last is None:
            return None
        return last + 1 if counter.is_number_of_report else last

    def _last(self, index: int) -> float | None:
        return next((s.counts[index] for s in reversed(self._samples) if s.counts[index] is not None), None)

    def _rate(self, index: int, since: float) -> float | None:
        """A second; slower than it was where the next is overdue."""
        with_it = [sample for sample in self._samples if sample.counts[index] is not None]
        if len(with_it) < 2:
            return None
        first, last = with_it[0], with_it[-1]
        took = last.at - first.at
        more = (last.counts[index] or 0.0) - (first.counts[index] or 0.0)
        if took <= 0 or more < 0:
            return None
        overdue = max(0.0, since - self._longest(with_it))
        return more / (took + overdue)

    def _longest(self, samples: list[_Sample]) -> float:
        return max(later.at - earlier.at for earlier, later in pairwise(samples))

    def _left(self, rest: float, rate: float | None, index: int, since: float) -> float | None:
        if rest == 0:
            return 0.0
        if not rate:
            return None
        with_it = [sample for sample in self._samples if sample.counts[index] is not None]
        left = rest / rate - min(since, self._longest(with_it))
        return max(0.0, left) if math.isfinite(left) else None


def goal(config: Mapping[str, Any], kind: Kind) -> float | None:
    """Up to which number a run counts, if its configuration says so."""
    for name in _GOALS[kind]:
        found = _number(config, name)
        if found:
            return found
    return None


def _names(of_kinds: Mapping[Kind, tuple[str, ...]], within: tuple[str, ...]) -> dict[Kind, tuple[str, ...]]:
    return {
        kind: tuple(f"{outer}/{name}" if outer else name for outer in within for name in names)
        for kind, names in of_kinds.items()
    }


_COUNTERS = _names(COUNTERS, _OF_METRICS)
_GOALS = _names(GOALS, _OF_CONFIGURATIONS)


def _number(values: Mapping[str, Any], path: str) -> float | None:
    """What stands under a name such as `epoch` or `train/epoch`, flat or nested; only finite numbers, from 0."""
    found = values.get(path)
    outer, _, inner = path.partition("/")
    if found is None and inner and isinstance(values.get(outer), Mapping):
        found = values[outer].get(inner)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        number = float(found)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
