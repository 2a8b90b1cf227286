"""The reports of a run that count, column by column: numbers in arrays, and no object for each point.

A later attempt that makes reports again takes the place of the earlier one's, so rows are cut off at the end and added
there. Rows are in the order of steps.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from msgspec import UNSET

from paceline._core.plain import unplain

OWN = ("step", "time", "attempt")
"""What a row has beside its metrics; a metric of such a name is called `reported/step` and so on."""
_EXACT = 1 << 53


@dataclass
class Column:
    """The numbers of one metric."""

    rows: array[int] = field(default_factory=lambda: array("i"))
    values: array[float] = field(default_factory=lambda: array("d"))
    whole: bool = True
    """All of them are integers."""
    leading: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By mode, the place of the best number so far, or -1, and how many were looked at for it."""

    def add(self, row: int, value: float) -> None:
        if self.whole and not (type(value) is int and -_EXACT < value < _EXACT):
            self.whole = False
        self.rows.append(row)
        try:
            self.values.append(value)
        except OverflowError:  # Of an integer that is larger than any float.
            self.values.append(float("inf") if value > 0 else float("-inf"))

    def best(self, mode: str) -> int | None:
        """The place of the least (`min`) or greatest number; of equals the first, and nan is never it."""
        at, looked = self.leading.get(mode, (-1, 0))
        if looked < len(self.values):
            new = self.values[looked:]
            found = (min if mode == "min" else max)((value for value in new if value == value), default=None)
            if found is not None and (
                at < 0 or (found < self.values[at] if mode == "min" else found > self.values[at])
            ):
                at = looked + new.index(found)
            self.leading[mode] = at, len(self.values)
        return at if at >= 0 else None

    def value(self, at: int) -> int | float:
        value = self.values[at]
        return int(value) if self.whole else value


@dataclass
class Others:
    """What of one metric is no number: texts, truths, lists as they are."""

    rows: array[int] = field(default_factory=lambda: array("i"))
    values: list[Any] = field(default_factory=list)


class Reports:
    def __init__(self) -> None:
        self.seqs: array[int] = array("q")
        self.ats: array[float] = array("d")
        self.attempts: array[int] = array("i")
        self.columns: dict[str, Column] = {}
        self.others: dict[str, Others] = {}
        self._texts: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.seqs)

    def add(self, attempt: int, seq: int, at: float, metrics: Mapping[str, Any]) -> None:
        """One report more, its metrics as the journal has them."""
        self.make_way(attempt, seq)
        row = len(self.seqs)
        self.seqs.append(seq)
        self.ats.append(at)
        self.attempts.append(attempt)
        for name, value in flattened(metrics):
            self._put(name, row, value)

    def make_way(self, attempt: int, seq: int) -> None:
        """An attempt is about to add this report: those of earlier attempts from there on give way."""
        if self.attempts and attempt > self.attempts[-1] and self.seqs[-1] >= seq:
            self._cut(bisect_left(self.seqs, seq))

    def add_many(
        self,
        attempt: int,
        seqs: Sequence[int],
        ats: Sequence[float],
        metrics: Sequence[Any],
        names: tuple[str, ...] | None = None,
    ) -> None:
        """The same of many of one attempt. With `names`, metrics are numbers in attributes `m0`, `m1` and so on."""
        if not seqs:
            return
        values = _by_attribute(metrics, names) if names is not None else _by_key(metrics)
        if values is None:
            for seq, at, each in zip(seqs, ats, metrics, strict=True):
                self.add(attempt, seq, at, each)
            return
        self.make_way(attempt, seqs[0])
        first = len(self.seqs)
        self.seqs.extend(array("q", seqs))
        self.ats.extend(array("d", ats))
        self.attempts.extend(array("i", [attempt]) * len(seqs))
        for name, column in values.items():
            self._put_many(name, first, column)

    def row_at(self, seq: int) -> int | None:
        """The row of the last report up to this one."""
        at = bisect_right(self.seqs, seq)
        return at - 1 if at else None

    def metrics_of(self, row: int, names: Sequence[str] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in self.names() if names is None else names:
            for column in (self.columns.get(name), self.others.get(name)):
                if column is None:
                    continue
                at = bisect_left(column.rows, row)
                if at < len(column.rows) and column.rows[at] == row:
                    found[name] = column.value(at) if isinstance(column, Column) else column.values[at]
        return found

    def names(self) -> list[str]:
        return list(dict.fromkeys((*self.columns, *self.others)))

    def between(self, first: int, end: int, names: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Rows as dicts, in order."""
        cells: list[dict[str, Any]] = [{} for _ in range(end - first)]
        for name in self.names() if names is None else names:
            shown = f"reported/{name}" if name in OWN else name
            column, others = self.columns.get(name), self.others.get(name)
            if column is not None:
                low, high = bisect_left(column.rows, first), bisect_left(column.rows, end)
                whole = column.whole
                for row, value in zip(column.rows[low:high], column.values[low:high], strict=True):
                    cells[row - first][shown] = int(value) if whole else value
            if others is not None:
                low, high = bisect_left(others.rows, first), bisect_left(others.rows, end)
                for row, other in zip(others.rows[low:high], others.values[low:high], strict=True):
                    cells[row - first][shown] = other
        for at, cell in enumerate(cells, start=first):
            yield {"step": self.seqs[at], "time": self.ats[at], "attempt": self.attempts[at], **cell}

    def _put(self, name: str, row: int, value: Any) -> None:
        if type(value) is float or type(value) is int:
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = Column()
            column.add(row, value)
            return
        others = self.others.get(name)
        if others is None:
            others = self.others[name] = Others()
        others.rows.append(row)
        # The same few texts come again and again.
        others.values.append(self._texts.setdefault(value, value) if type(value) is str else value)

    def _put_many(self, name: str, first: int, values: list[Any]) -> None:
        kinds = set(map(type, values))
        if kinds <= {float, int}:
            try:
                new = array("d", values)
            except OverflowError:  # Of an integer that is larger than any float.
                pass
            else:
                column = self.columns.get(name)
                if column is None:
                    column = self.columns[name] = Column()
                if column.whole and (float in kinds or not all(-_EXACT < value < _EXACT for value in new)):
                    column.whole = False
                column.rows.extend(array("i", range(first, first + len(values))))
                column.values.extend(new)
                return
        for row, value in enumerate(values, start=first):
            if value is not UNSET:
                self._put(name, row, unplain(value))

    def _cut(self, num_rows: int) -> None:
        for kept in (self.seqs, self.ats, self.attempts):
            del kept[num_rows:]
        columns: list[Column | Others] = [*self.columns.values(), *self.others.values()]
        for column in columns:
            at = bisect_left(column.rows, num_rows)
            del column.rows[at:]
            del column.values[at:]
            if isinstance(column, Column):
                column.leading.clear()


def flattened(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Metrics in plain form, each under one name: `eval/loss`."""
    for name, value in metrics.items():
        kind = type(value)
        if kind is float or kind is int or kind is str:
            yield f"{prefix}{name}", value
        elif isinstance(value, dict) and value and type(number := unplain(value)) is dict:
            yield from flattened(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", number if isinstance(value, dict) and value else unplain(value)


def _by_attribute(metrics: Sequence[Any], names: tuple[str, ...]) -> dict[str, list[Any]]:
    return {name: list(map(attrgetter(f"m{at}"), metrics)) for at, name in enumerate(names)}


def _by_key(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]] | None:
    """None where some are nested, or are numbers that JSON has not."""
    names = dict.fromkeys(name for each in metrics for name in each)
    found = {name: [each.get(name, UNSET) for each in metrics] for name in names}
    return None if any(dict in set(map(type, values)) for values in found.values()) else found
