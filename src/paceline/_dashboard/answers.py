"""What is asked about runs, answered: from a listing and the fields of a query to values. No web in here."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from paceline._control.journal import JournalVersionError
from paceline._core.errors import PacelineError
from paceline._dashboard.asked import MOST_FIELDS, MOST_LINES, MOST_POINTS, Asked, Refused, points_each
from paceline._view import logs
from paceline._view.diff import differences
from paceline._view.model import Detail, Diff, LogPage, Points, SearchDetail, Summary, UseSeries
from paceline._view.searches import search_detail

if TYPE_CHECKING:
    from paceline._storage.home import Home
    from paceline._view.listing import Listing
    from paceline._view.reading import RunReader

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet would compute."""


class About(msgspec.Struct, frozen=True):
    version: str
    root: str
    control: bool
    now: float


class Runs(msgspec.Struct, frozen=True):
    runs: list[Summary]


class Metrics(msgspec.Struct, frozen=True):
    series: list[Points]
    first: int
    last: int


class Uses(msgspec.Struct, frozen=True):
    ranks: list[UseSeries]


def about(root: str, control: bool) -> About:
    import paceline

    return About(paceline.__version__, root, control, time.time())


def reader_of(listing: Listing, run: str) -> RunReader:
    try:
        return listing.reader(run)
    except KeyError as problem:
        raise Refused(404, problem.args[0]) from None
    except JournalVersionError as problem:
        raise Refused(409, str(problem)) from None


def home_of(listing: Listing, run: str) -> Home:
    """Of a run or a search."""
    is_search = any(one.id == run and one.kind == "search" for one in listing.summaries())
    return listing.search(run).home if is_search else reader_of(listing, run).home


def detail_of(listing: Listing, run: str) -> Detail:
    """Of a search, what is said of it in a list: `/api/search` has the rest."""
    try:
        summary = listing.summary(run)
    except KeyError:
        raise Refused(404, f"there is no run {run[:200]!r} here") from None
    if summary.kind == "search":
        return Detail(summary=summary, version=listing.search(run).version)
    try:
        reader = listing.reader(run)
    except PacelineError:
        return Detail(summary=summary)  # It cannot be read, and the summary says why.
    return reader.detail(run, kind=summary.kind, search=summary.search)


def last_step(listing: Listing, run: str) -> int:
    """Of a search, how many trials have ended."""
    summary = listing.summary(run)
    return summary.num_reports if summary.kind == "search" else reader_of(listing, run).last_step


def runs(listing: Listing, asked: Asked) -> Runs:
    return Runs(list(listing.summaries()))


def run(listing: Listing, asked: Asked) -> Detail:
    return detail_of(listing, asked.text("run"))


def metrics(listing: Listing, asked: Asked) -> Metrics:
    reader = reader_of(listing, asked.text("run"))
    names = (asked.all("name") or reader.metric_names())[:MOST_FIELDS]
    at_most = points_each(asked.whole("points", 2000, least=1, most=MOST_POINTS), len(names))
    series = reader.points(names, x=asked.axis(), range=asked.range(), at_most=at_most)
    last = reader.last_step
    return Metrics(series, min(last, 1), last)


def use(listing: Listing, asked: Asked) -> Uses:
    return Uses(reader_of(listing, asked.text("run")).use(attempt=asked.optional_whole("attempt")))


def log_page(home: Home, asked: Asked) -> LogPage:
    attempt, rank = asked.whole("attempt"), asked.whole("rank")
    before, after = asked.optional_whole("before"), asked.optional_whole("after")
    if before is not None and after is not None:
        raise Refused(400, "`before` and `after` are both there: a page goes on to one side")
    if not any((file.attempt, file.rank) == (attempt, rank) for file in logs.files(home)):
        raise Refused(404, f"there is no log of attempt {attempt}, rank {rank}")
    return logs.page(
        home,
        attempt,
        rank,
        before=before,
        after=after,
        limit=asked.whole("limit", 500, least=1, most=MOST_LINES),
        search=asked.optional("search") or None,
    )


def diff(listing: Listing, asked: Asked) -> Diff:
    return differences(detail_of(listing, asked.text("a")), detail_of(listing, asked.text("b")))


def search(listing: Listing, asked: Asked) -> SearchDetail:
    name = asked.text("run")
    mode = asked.optional("mode")
    if mode not in (None, "min", "max"):
        raise Refused(400, f"`mode` is {mode[:50]!r}; it has to be `min` or `max`")
    try:
        return search_detail(listing, name, asked.optional("metric"), mode)
    except KeyError:
        raise Refused(404, f"there is no search {name[:200]!r} here") from None


def csv_lines(
    rows: Iterable[Mapping[str, Any]], names: Iterable[str], rows_at_once: int = 5000
) -> Generator[bytes, None, None]:
    """A table of reports, some thousand rows at a time."""
    columns = ["step", "time", "attempt", *(name for name in names if name not in ("step", "time", "attempt"))]
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow([_cell(column) for column in columns])
    for number, row in enumerate(rows, start=1):
        table.writerow([_cell(row.get(column)) for column in columns])
        if number % rows_at_once == 0:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def _cell(value: Any) -> Any:
    # A text from a run must not become a formula in the spreadsheet of whoever opens the file.
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) and value != "-inf" else value
