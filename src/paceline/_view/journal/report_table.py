"""The valid reports of a run by column: numbers in arrays, without an object per point.

If a later attempt repeats reports, they replace those of the earlier attempt, so rows are truncated and appended at the
end. Rows are sorted by step.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Any

from msgspec import UNSET

from paceline._core.plain_values import from_plain

ROW_FIELDS = ("step", "time", "attempt")
"""Fields of a row besides its metrics."""
_MAX_EXACT_INT = 1 << 53


def row_label(metric: str) -> str:
    """Return the name of a metric in a row: a metric `step` is `reported/step`, beside the number of the report."""
    return f"reported/{metric}" if metric in ROW_FIELDS else metric


@dataclass
class MetricColumn:
    """The numbers of one metric."""

    rows: array[int] = field(default_factory=lambda: array("i"))
    values: array[float] = field(default_factory=lambda: array("d"))
    is_integer: bool = True
    best_so_far: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By mode: the index of the best number so far, or -1, and how many numbers were checked."""
    goes_backwards: bool = False
    num_ordered: int = 0
    """How many of the first numbers, but for the last, were checked for that."""

    def add(self, row: int, value: float) -> None:
        if self.is_integer and not (type(value) is int and -_MAX_EXACT_INT < value < _MAX_EXACT_INT):
            self.is_integer = False
        self.rows.append(row)
        try:
            self.values.append(value)
        except OverflowError:  # An integer larger than any float.
            self.values.append(float("inf") if value > 0 else float("-inf"))

    def find_best(self, mode: str) -> int | None:
        """Return the index of the minimum (`min`) or maximum; the first of equals. Ignores nan."""
        at, num_checked = self.best_so_far.get(mode, (-1, 0))
        if num_checked < len(self.values):
            new = self.values[num_checked:]
            best = (min if mode == "min" else max)((value for value in new if value == value), default=None)
            if best is not None and (at < 0 or (best < self.values[at] if mode == "min" else best > self.values[at])):
                at = num_checked + new.index(best)
            self.best_so_far[mode] = at, len(self.values)
        return at if at >= 0 else None

    def choose(self, rows: Collection[int], bounds: Sequence[int]) -> list[int]:
        """Return the indices of these rows, and of the minimum and maximum between each two bounds."""
        chosen = _find_indices(self.rows, rows)
        for low, high in pairwise(bisect_left(self.rows, bound) for bound in bounds):
            block: Sequence[float] = self.values[low:high]
            total = sum(block)
            # The sum tells whether there may be a nan, and is much faster than looking at each number.
            numbers = block if total == total else [value for value in block if value == value]
            if numbers:
                chosen |= {low + block.index(best(numbers)) for best in (min, max)}
        return sorted(chosen)

    def value_at(self, at: int) -> int | float:
        value = self.values[at]
        return int(value) if self.is_integer else value


@dataclass
class NonNumericColumn:
    """The non-numeric values of one metric: texts, booleans, lists, unchanged."""

    rows: array[int] = field(default_factory=lambda: array("i"))
    values: list[Any] = field(default_factory=list)

    def choose(self, rows: Collection[int], bounds: Sequence[int]) -> list[int]:
        return sorted(_find_indices(self.rows, rows))


class CompactedRowsError(Exception):
    """A later attempt repeats reports from a point where a compacted table cannot be cut."""


class ReportTable:
    def __init__(self) -> None:
        self.seqs: array[int] = array("q")
        self.ats: array[float] = array("d")
        self.attempts: array[int] = array("i")
        self.columns: defaultdict[str, MetricColumn] = defaultdict(MetricColumn)
        self.non_numeric: defaultdict[str, NonNumericColumn] = defaultdict(NonNumericColumn)
        self.compacted_until = 0
        """Up to this report, only the rows that `compact` chose are left; 0 if there are all."""
        self.cuts: tuple[int, ...] = ()
        """After which of these reports a later attempt may resume."""
        self._texts: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.seqs)

    def add(self, attempt: int, seq: int, at: float, metrics: Mapping[str, Any]) -> None:
        """Add one report, with its metrics as in the journal."""
        self.drop_superseded(attempt, seq)
        row = len(self.seqs)
        self.seqs.append(seq)
        self.ats.append(at)
        self.attempts.append(attempt)
        for name, value in flatten_metrics(metrics):
            self._add_value(name, row, value)

    def drop_superseded(self, attempt: int, seq: int) -> None:
        """Drop reports of earlier attempts from this one on: the attempt is about to add it again."""
        if self.attempts and attempt > self.attempts[-1] and self.seqs[-1] >= seq:
            if 1 < seq <= self.compacted_until and seq - 1 not in self.cuts:
                raise CompactedRowsError
            self.compacted_until = min(self.compacted_until, seq - 1)
            self._truncate(bisect_left(self.seqs, seq))

    def compact(self, rows: Iterable[int], cuts: Iterable[int]) -> None:
        """Keep these rows, the rows at the cuts, and the minimum and maximum of each column between two cuts.

        `cuts`: the numbers of the reports after which a later attempt may resume. So the best values are the same as of
        all rows, also when a later attempt repeats some.
        """
        if not self.seqs:
            return
        self.cuts = tuple(sorted(cut for cut in cuts if cut > self.compacted_until or cut in self.cuts))
        ends = [bisect_right(self.seqs, cut) for cut in self.cuts]
        whole = {*rows, *(end - 1 for end in ends if end), len(self.seqs) - 1}
        bounds = sorted({0, *ends, len(self.seqs)})
        columns: list[MetricColumn | NonNumericColumn] = [*self.columns.values(), *self.non_numeric.values()]
        chosen = [column.choose(whole, bounds) for column in columns]
        rows_of = [[column.rows[at] for at in ats] for column, ats in zip(columns, chosen, strict=True)]
        kept = sorted(whole.union(*rows_of))
        new_row = {row: at for at, row in enumerate(kept)}
        self.compacted_until = self.seqs[-1]
        self.seqs, self.ats = array("q", [self.seqs[row] for row in kept]), array("d", [self.ats[row] for row in kept])
        self.attempts = array("i", [self.attempts[row] for row in kept])
        for column, ats in zip(columns, chosen, strict=True):
            values = [column.values[at] for at in ats]
            column.rows = array("i", [new_row[column.rows[at]] for at in ats])
            column.values = array("d", values) if isinstance(column, MetricColumn) else values
            if isinstance(column, MetricColumn):
                column.best_so_far.clear()
                column.num_ordered = max(0, len(ats) - 1)

    def add_many(
        self,
        attempt: int,
        seqs: Sequence[int],
        ats: Sequence[float],
        metrics: Sequence[Any],
        names: tuple[str, ...] | None = None,
    ) -> None:
        """Add many reports of one attempt. With `names`, metrics are numbers in the attributes `m0`, `m1` and so on."""
        if not seqs:
            return
        values: dict[str, list[Any]] | None
        if names is not None:
            values = {name: list(map(attrgetter(f"m{at}"), metrics)) for at, name in enumerate(names)}
        else:
            values = _columns_by_key(metrics)
        if values is None:
            for seq, at, each in zip(seqs, ats, metrics, strict=True):
                self.add(attempt, seq, at, each)
            return
        self.drop_superseded(attempt, seqs[0])
        first = len(self.seqs)
        self.seqs.extend(array("q", seqs))
        self.ats.extend(array("d", ats))
        self.attempts.extend(array("i", [attempt]) * len(seqs))
        for name, column in values.items():
            self._add_values(name, first, column)

    def goes_backwards(self, name: str) -> bool:
        """Whether a metric is ever lower than in the report before it, within one attempt."""
        column = self.columns[name]
        rows, values = column.rows, column.values
        while column.num_ordered + 1 < len(rows) and not column.goes_backwards:
            at = column.num_ordered
            is_same_attempt = self.attempts[rows[at]] == self.attempts[rows[at + 1]]
            column.goes_backwards = is_same_attempt and values[at + 1] < values[at]
            column.num_ordered += 1
        return column.goes_backwards

    def last_changes(self, name: str, at_most: int) -> Iterator[int]:
        """Yield the rows where a metric that never decreases got its last values, in the last attempt, newest first."""
        column = self.columns[name]
        least = bisect_left(column.rows, bisect_left(self.attempts, self.attempts[-1]))
        end = len(column.rows)
        for _ in range(at_most):
            if end <= least:
                return
            end = bisect_left(column.values, column.values[end - 1], least, end)
            yield column.rows[end]

    def find_row(self, seq: int) -> int | None:
        """Return the row of the last report up to this one."""
        at = bisect_right(self.seqs, seq)
        return at - 1 if at else None

    def row_metrics(self, row: int, names: Sequence[str] | None = None) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for name in self.metric_names() if names is None else names:
            for column in (self.columns.get(name), self.non_numeric.get(name)):
                if column is None:
                    continue
                at = bisect_left(column.rows, row)
                if at < len(column.rows) and column.rows[at] == row:
                    metrics[name] = column.value_at(at) if isinstance(column, MetricColumn) else column.values[at]
        return metrics

    def metric_names(self) -> list[str]:
        return list(dict.fromkeys((*self.columns, *self.non_numeric)))

    def numeric_names(self) -> tuple[str, ...]:
        """Return the names of metrics that have numbers."""
        return tuple(name for name, column in self.columns.items() if len(column.rows))

    def iter_rows(self, first: int, end: int, names: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield rows as dicts, in order."""
        cells: list[dict[str, Any]] = [{} for _ in range(end - first)]
        for name in self.metric_names() if names is None else names:
            label = row_label(name)
            for column in (self.columns.get(name), self.non_numeric.get(name)):
                if column is None:
                    continue
                low, high = bisect_left(column.rows, first), bisect_left(column.rows, end)
                is_integer = isinstance(column, MetricColumn) and column.is_integer
                for row, value in zip(column.rows[low:high], column.values[low:high], strict=True):
                    cells[row - first][label] = int(value) if is_integer else value
        for at, cell in enumerate(cells, start=first):
            yield {"step": self.seqs[at], "time": self.ats[at], "attempt": self.attempts[at], **cell}

    def _add_value(self, name: str, row: int, value: Any) -> None:
        if type(value) is float or type(value) is int:
            self.columns[name].add(row, value)
            return
        non_numeric = self.non_numeric[name]
        non_numeric.rows.append(row)
        # Share equal strings: the same few recur.
        non_numeric.values.append(self._texts.setdefault(value, value) if type(value) is str else value)

    def _add_values(self, name: str, first: int, values: list[Any]) -> None:
        kinds = set(map(type, values))
        if kinds <= {float, int}:
            try:
                new = array("d", values)
            except OverflowError:  # An integer larger than any float.
                pass
            else:
                column = self.columns[name]
                if column.is_integer:
                    is_exact = float not in kinds and all(-_MAX_EXACT_INT < value < _MAX_EXACT_INT for value in new)
                    column.is_integer = is_exact
                column.rows.extend(array("i", range(first, first + len(values))))
                column.values.extend(new)
                return
        for row, value in enumerate(values, start=first):
            if value is not UNSET:
                self._add_value(name, row, from_plain(value, as_lists=True))

    def _truncate(self, num_rows: int) -> None:
        for values in (self.seqs, self.ats, self.attempts):
            del values[num_rows:]
        columns: list[MetricColumn | NonNumericColumn] = [*self.columns.values(), *self.non_numeric.values()]
        for column in columns:
            at = bisect_left(column.rows, num_rows)
            del column.rows[at:]
            del column.values[at:]
            if isinstance(column, MetricColumn):
                column.best_so_far.clear()
                column.goes_backwards, column.num_ordered = False, 0


def flatten_metrics(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield metrics as plain values under flat names: `eval/loss`."""
    for name, value in metrics.items():
        kind = type(value)
        if kind is float or kind is int or kind is str:
            yield f"{prefix}{name}", value
        elif isinstance(read := from_plain(value, as_lists=True), dict) and read:
            yield from flatten_metrics(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", read


def _find_indices(sorted_rows: Sequence[int], rows: Iterable[int]) -> set[int]:
    found = ((bisect_left(sorted_rows, row), row) for row in rows)
    return {at for at, row in found if at < len(sorted_rows) and sorted_rows[at] == row}


def _columns_by_key(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]] | None:
    """Return None if some are nested, or are numbers that JSON does not have."""
    names = dict.fromkeys(name for each in metrics for name in each)
    columns = {name: [each.get(name, UNSET) for each in metrics] for name in names}
    return None if any(dict in set(map(type, values)) for values in columns.values()) else columns
