"""The metrics of a run by column, read from its journal, for a data frame of millions of reports.

Most reports have only numbers. They are decoded in blocks and kept as NumPy arrays. A column that has anything else is
left to pandas, value by value, so that a data frame does not depend on how the journal was read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from msgspec import UNSET

from paceline._control.events import Reported
from paceline._control.journal import decode_line
from paceline._control.recovery import RunReplay, add_missing_events, replay_journal
from paceline._control.report_aggregator import ReportCollector, RunReport
from paceline._core.arguments import flatten_dict
from paceline._core.lazy_imports import import_extra
from paceline._storage.journal_archive import BLOCK_BYTES, iter_journal_blocks, iter_whole_lines
from paceline._storage.run_store import DiskRunStore, RunStore
from paceline._view.journal.lines import JournalLines, decode_journal_lines

_INT_LIMIT = 1 << 63


class MetricsTable:
    """One row per report that counts."""

    def __init__(self) -> None:
        self._blocks: list[tuple[array[int], dict[str, Any]]] = []
        """Report numbers and columns. A column is a NumPy array, or a list with `UNSET` where a report has no value."""
        self._rows: list[tuple[int, dict[str, Any]]] = []
        """Reports that are in no block yet: number and metrics."""
        self._attempt = 0
        self.names: dict[str, None] = {}
        """The metrics so far, in order of appearance."""

    def add(self, report: RunReport) -> None:
        self._begin_attempt(report.attempt, report.seq)
        self._rows.append((report.seq, flatten_dict(report.metrics)))

    def add_numbers(self, attempt: int, seqs: list[int], names: tuple[str, ...], metrics: Sequence[Any]) -> None:
        """Add reports whose metrics are numbers, in the attributes `m0`, `m1` and so on."""
        if seqs:
            self._begin_attempt(attempt, seqs[0])
            self._close_rows()
            self._add_block(seqs, {name: list(map(attrgetter(f"m{at}"), metrics)) for at, name in enumerate(names)})

    def _add_block(self, seqs: list[int], values: dict[str, list[Any]]) -> None:
        """Add rows, with `UNSET` where a report has no value."""
        columns = {name: _pack(column) for name, column in values.items() if any(v is not UNSET for v in column)}
        self._blocks.append((array("q", seqs), columns))
        self.names |= dict.fromkeys(columns)

    def _begin_attempt(self, attempt: int, seq: int) -> None:
        """Drop the reports that an attempt repeats: see `drop_superseded_reports`."""
        if attempt <= self._attempt:
            return
        self._attempt = attempt
        self._close_rows()
        while self._blocks and self._blocks[-1][0][-1] >= seq:
            seqs, columns = self._blocks.pop()
            if end := bisect_left(seqs, seq):
                self._blocks.append((seqs[:end], {name: values[:end] for name, values in columns.items()}))

    def _close_rows(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            names = dict.fromkeys(name for _, row in rows for name in row)
            self._add_block(
                [seq for seq, _ in rows], {name: [row.get(name, UNSET) for _, row in rows] for name in names}
            )

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame; None without rows."""
        self._close_rows()
        if not self._blocks:
            return None
        pandas = import_extra("pandas", "a data frame of metrics")
        num_rows = sum(len(seqs) for seqs, _ in self._blocks)
        names = dict.fromkeys(
            name
            for _, columns in self._blocks
            for name, values in columns.items()
            if not isinstance(values, list) or any(value is not UNSET for value in values)
        )
        if not names:
            return pandas.DataFrame([{}] * num_rows)
        joined = {name: self._join_column(pandas, name) for name in names}
        return pandas.DataFrame(joined, index=pandas.RangeIndex(num_rows))

    def _join_column(self, pandas: Any, name: str) -> Any:
        """Join the blocks of a column, and free them."""
        import numpy

        pieces = [(len(seqs), columns.pop(name, None)) for seqs, columns in self._blocks]
        if all(isinstance(piece, numpy.ndarray) for _, piece in pieces):
            return numpy.concatenate([piece for _, piece in pieces])
        if all(piece is None or isinstance(piece, numpy.ndarray) for _, piece in pieces):
            return numpy.concatenate(
                [numpy.full(size, numpy.nan) if piece is None else piece for size, piece in pieces]
            )
        values = [
            value
            for size, piece in pieces
            for value in ([UNSET] * size if piece is None else piece if isinstance(piece, list) else piece.tolist())
        ]
        return pandas.DataFrame([{} if value is UNSET else {name: value} for value in values], columns=[name])[name]


def _pack(values: list[Any]) -> Any:
    """Make an array of numbers that are one for pandas, too; leave all else as it is."""
    import numpy

    kinds = set(map(type, values))
    if kinds == {float}:
        return numpy.array(values, "float64")
    if kinds <= {int, float} and all(-_INT_LIMIT <= value < _INT_LIMIT for value in values if type(value) is int):
        return numpy.array(values, "int64" if kinds == {int} else "float64")
    return values


def read_metrics(store: RunStore) -> MetricsTable:
    """Read the metrics of a run: those of rank 0, with reduced metrics computed over all ranks."""
    table, collector = MetricsTable(), ReportCollector()
    replay: RunReplay | None = RunReplay()
    if not isinstance(store, DiskRunStore):
        blocks = _iter_stored_blocks(store)
    elif (store.layout.root / "reports").exists() or not store.layout.journal.exists():
        # First, so that no report of a run in progress is skipped between its journal and the files of its workers.
        replay, _, reader = replay_journal(store.layout)
        blocks = iter_journal_blocks(store.layout.journal, reader.length)
    else:
        replay, blocks = None, iter_journal_blocks(store.layout.journal)
    for block in blocks:
        lines = decode_journal_lines(block, table.names)
        _add_lines(table, collector, lines, store.uri)
        if lines.num_bytes < len(block):
            break
    if isinstance(store, DiskRunStore) and replay is not None:
        for event in add_missing_events(store, replay):
            if isinstance(event, Reported):
                _add_reports(table, collector.add_report(event))
    _add_reports(table, collector.flush())
    return table


def _iter_stored_blocks(store: RunStore) -> Iterator[bytes]:
    journal = store.read_journal()
    return iter_whole_lines(journal[at : at + BLOCK_BYTES] for at in range(0, len(journal), BLOCK_BYTES))


def _add_lines(table: MetricsTable, collector: ReportCollector, lines: JournalLines, uri: str) -> None:
    start = 0
    for at in (*lines.special, len(lines.lines)):
        if start < at:
            _add_plain_reports(table, collector, lines, start, at, uri)
        if at < len(lines.lines):
            _add_line(table, collector, lines.payloads[at], uri)
        start = at + 1


def _add_plain_reports(
    table: MetricsTable, collector: ReportCollector, lines: JournalLines, start: int, end: int, uri: str
) -> None:
    reports = lines.lines[start:end]
    attempts = set(map(attrgetter("attempt"), reports))
    if lines.names is None or len(attempts) > 1 or collector.has_waiting:
        for payload in lines.payloads[start:end]:
            _add_line(table, collector, payload, uri)
        return
    (attempt,) = attempts
    _add_reports(table, collector.begin_attempt(attempt))
    first = reports
    if set(map(attrgetter("rank"), reports)) != {0}:
        first = [line for line in reports if line.rank == 0]
    seqs, metrics = (list(map(attrgetter(name), first)) for name in ("seq", "metrics"))
    table.add_numbers(attempt, seqs, lines.names, metrics)


def _add_line(table: MetricsTable, collector: ReportCollector, payload: bytes, uri: str) -> None:
    event = decode_line(payload, uri)
    if isinstance(event, Reported):
        _add_reports(table, collector.add_report(event))


def _add_reports(table: MetricsTable, reports: Iterator[RunReport]) -> None:
    for report in reports:
        table.add(report)
