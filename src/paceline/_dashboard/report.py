"""A run as one HTML file to keep or to mail: the page with its style and script inside, and the run's values.

It opens from a disk, needs no network and may use none: its policy names the one script and the one style by their
hashes. What is too much is cut, and the page says so.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
from typing import TYPE_CHECKING, Any

import msgspec

from paceline._dashboard.answers import About, about, detail_of, reader_of
from paceline._dashboard.page import page_file
from paceline._view import logs
from paceline._view.listing import Listing
from paceline._view.model import Detail, LogLine, LogPage, Points, SearchDetail, UseSeries, encode
from paceline._view.reading import RunReader
from paceline._view.searches import search_detail

if TYPE_CHECKING:
    from paceline._storage.home import Home

POINTS_EACH = 2000
POINTS = 100_000
"""Over all metrics; each comes twice, by step and by time."""
METRICS = 500
LINES_EACH = 300
LINE_CHARACTERS = 2000
LOG_CHARACTERS = 2_000_000
LOGS = 64
USES = 64
"""Ranks whose use over time is told."""

_STYLE = '<link rel="stylesheet" crossorigin href="./app.css">'
_SCRIPT = '<script type="module" crossorigin src="./app.js"></script>'
_TITLE = "<title>Paceline</title>"
_CSP = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)


class ReportLog(msgspec.Struct, frozen=True):
    attempt: int
    rank: int
    page: LogPage


class Report(msgspec.Struct, frozen=True, kw_only=True):
    about: About
    detail: Detail
    points: dict[str, list[Points]] = msgspec.field(default_factory=lambda: {"step": [], "time": []})
    use: list[UseSeries] = msgspec.field(default_factory=list)
    logs: list[ReportLog] = msgspec.field(default_factory=list)
    search: SearchDetail | None = None
    cut: list[str] = msgspec.field(default_factory=list)


def report(run: str | os.PathLike[str]) -> bytes:
    """The page about one run or search, by its path or address. `StorageError` where there is none."""
    listing = Listing(run)
    listing.refresh()
    if "." not in {one.id for one in listing.summaries()}:
        RunReader(run).summary()  # It says what is wrong.
    return report_of(listing, ".")


def report_of(listing: Listing, run: str) -> bytes:
    """The same by the id that a listing has for it."""
    return page_of(values(listing, run))


def values(listing: Listing, run: str) -> Report:
    detail = detail_of(listing, run)
    told = about(detail.summary.path, control=False)
    if detail.summary.kind == "search":
        return Report(about=told, detail=detail, search=search_detail(listing, run))
    reader = reader_of(listing, run)
    cut: list[str] = []
    names = _most(detail.metric_names, METRICS, "metrics", cut)
    at_most = max(min(POINTS_EACH, POINTS // max(len(names), 1)), 50)
    points = {
        "step": reader.points(names, x="step", at_most=at_most),
        "time": reader.points(names, x="time", at_most=at_most),
    }
    if any(not one.whole for one in points["step"]):
        cut.append(f"of each metric, {at_most:,} points, each the mean of those around it with the least and greatest")
    return Report(
        about=told,
        detail=detail,
        points=points,
        use=_most(reader.use(), USES, "ranks' use over time", cut),
        logs=_last_lines(reader.home, detail, cut),
        cut=cut,
    )


def page_of(values: Report) -> bytes:
    page = page_file("index.html").data.decode()
    style = page_file("app.css").data.decode()
    # In a page, these two end a script or begin a comment, wherever in the script they stand.
    script = page_file("app.js").data.decode().replace("</script", "<\\/script").replace("<!--", "<\\!--")
    data = encode(values).replace(b"<", b"\\u003c").decode()
    policy = _CSP.format(script=_hash(script), style=_hash(style))
    title = f"<title>{html.escape(values.detail.summary.name)} - Paceline</title>"
    data = f'<script type="application/json" id="report">{data}</script>'
    for old, new in (
        (_TITLE, f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{title}'),
        (_STYLE, f"<style>{style}</style>"),
        (_SCRIPT, f'{data}\n<script type="module">{script}</script>'),
    ):
        before, found, after = page.partition(old)
        if not found:
            raise AssertionError(f"the page has no {old}")
        page = before + new + after
    return page.encode()


def _last_lines(home: Home, detail: Detail, cut: list[str]) -> list[ReportLog]:
    found, room = [], LOG_CHARACTERS
    # Of the last attempt first: where not all fits, that is what was asked about.
    newest = sorted(detail.logs, key=lambda file: (-file.attempt, file.rank))
    for file in _most(newest, LOGS, "logs", cut):
        page = logs.page(home, file.attempt, file.rank, limit=LINES_EACH)
        lines = tuple(LogLine(line.offset, line.text[:LINE_CHARACTERS]) for line in page.lines)
        size = sum(len(line.text) for line in lines)
        if size > room:
            cut.append(f"the log of {file.name}")
            continue
        room -= size
        found.append(ReportLog(file.attempt, file.rank, msgspec.structs.replace(page, lines=lines)))
    if any(one.page.before for one in found):
        cut.append(f"of each log, the last {LINES_EACH} lines")
    return found


def _most(items: Any, limit: int, what: str, cut: list[str]) -> Any:
    if len(items) > limit:
        cut.append(f"{limit} of {len(items):,} {what}")
    return items[:limit]


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
