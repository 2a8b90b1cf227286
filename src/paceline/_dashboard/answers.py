"""Answers questions about runs: takes a listing and the fields of a query, returns values. No web code."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from paceline._control.journal import JournalVersionError
from paceline._core.errors import PacelineError
from paceline._dashboard import query_fields
from paceline._dashboard.query_fields import QueryFields, RequestRefusedError
from paceline._view import logs
from paceline._view.diff import compare_runs
from paceline._view.journal.report_table import ROW_FIELDS, row_label
from paceline._view.model import Diff, LogPage, Points, RunSnapshot, SearchDetail, Summary, UsageSeries

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation
    from paceline._view.listing import Listing
    from paceline._view.run_reader import RunReader

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Text with such a start would be a formula in a spreadsheet."""


class AboutAnswer(msgspec.Struct, frozen=True):
    version: str
    root: str
    control: bool
    now: float


class MetricsAnswer(msgspec.Struct, frozen=True):
    series: list[Points]
    first: int
    last: int


def get_about(root: str, control: bool) -> AboutAnswer:
    import paceline

    return AboutAnswer(paceline.__version__, root, control, time.time())


def get_reader(listing: Listing, run: str) -> RunReader:
    try:
        return listing.reader(run)
    except KeyError as problem:
        raise RequestRefusedError(404, problem.args[0]) from None
    except JournalVersionError as problem:
        raise RequestRefusedError(409, str(problem)) from None


def get_location(listing: Listing, run: str) -> RunLocation:
    """Return the location of a run or a search."""
    is_search = any(summary.id == run and summary.kind == "search" for summary in listing.summaries())
    return listing.search_reader(run).location if is_search else get_reader(listing, run).location


def get_detail(listing: Listing, run: str) -> RunSnapshot:
    """Return the detail of a run. For a search it has only the summary: `/api/search` has the rest."""
    try:
        summary = listing.summary(run)
    except KeyError:
        raise RequestRefusedError(404, f"there is no run {run[:200]!r} here") from None
    if summary.kind == "search":
        return RunSnapshot(summary=summary, version=listing.search_reader(run).version)
    try:
        reader = listing.reader(run)
    except PacelineError:
        return RunSnapshot(summary=summary)  # It cannot be read, and the summary says why.
    return reader.snapshot(run, kind=summary.kind, search=summary.search)


def get_last_step(listing: Listing, run: str) -> int:
    """Return the last step of a run, or the number of ended trials of a search."""
    summary = listing.summary(run)
    return summary.num_reports if summary.kind == "search" else get_reader(listing, run).last_step


def get_runs(listing: Listing, fields: QueryFields) -> dict[str, list[Summary]]:
    return {"runs": listing.summaries()}


def get_run(listing: Listing, fields: QueryFields) -> RunSnapshot:
    return get_detail(listing, fields.text("run"))


def get_metrics(listing: Listing, fields: QueryFields) -> MetricsAnswer:
    reader = get_reader(listing, fields.text("run"))
    names = (fields.all_texts("name") or reader.metric_names())[: query_fields.MAX_FIELDS]
    points = fields.integer("points", 2000, least=1, most=query_fields.MAX_POINTS)
    at_most = query_fields.points_per_metric(points, len(names))
    series = reader.points(names, x=fields.axis(), range=fields.range(), at_most=at_most)
    last = reader.last_step
    return MetricsAnswer(series, min(last, 1), last)


def get_usage(listing: Listing, fields: QueryFields) -> dict[str, list[UsageSeries]]:
    reader = get_reader(listing, fields.text("run"))
    return {"ranks": reader.usage_series(attempt=fields.optional_integer("attempt"))}


def get_log_page(location: RunLocation, fields: QueryFields) -> LogPage:
    attempt, rank = fields.integer("attempt"), fields.integer("rank")
    before, after = fields.optional_integer("before"), fields.optional_integer("after")
    if before is not None and after is not None:
        raise RequestRefusedError(400, "`before` and `after` cannot be combined")
    if not any((file.attempt, file.rank) == (attempt, rank) for file in logs.list_log_files(location)):
        raise RequestRefusedError(404, f"there is no log of attempt {attempt}, rank {rank}")
    return logs.read_log_page(
        location,
        attempt,
        rank,
        before=before,
        after=after,
        limit=fields.integer("limit", 500, least=1, most=query_fields.MAX_LINES),
        search=fields.optional_text("search") or None,
    )


def get_diff(listing: Listing, fields: QueryFields) -> Diff:
    return compare_runs(get_detail(listing, fields.text("a")), get_detail(listing, fields.text("b")))


def get_search(listing: Listing, fields: QueryFields) -> SearchDetail:
    name = fields.text("run")
    mode = fields.optional_text("mode")
    if mode not in (None, "min", "max"):
        raise RequestRefusedError(400, f"`mode` must be `min` or `max`, got {mode[:50]!r}")
    try:
        return listing.search_detail(name, fields.optional_text("metric"), mode)
    except KeyError:
        raise RequestRefusedError(404, f"there is no search {name[:200]!r} here") from None


def iter_csv_chunks(
    rows: Iterable[Mapping[str, Any]], names: Iterable[str], rows_at_once: int = 5000
) -> Generator[bytes, None, None]:
    """Yield a table of reports as CSV, some thousand rows at a time."""
    columns = [*ROW_FIELDS, *map(row_label, names)]
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow([_escape_cell(column) for column in columns])
    for number, row in enumerate(rows, start=1):
        table.writerow([_escape_cell(row.get(column)) for column in columns])
        if number % rows_at_once == 0:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def _escape_cell(value: Any) -> Any:
    # A text from a run must not become a formula in the spreadsheet of whoever opens the file.
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) and value != "-inf" else value
