"""A run as one HTML file to keep or to mail: the page with its style and script inside, and the run's values.

It opens from a disk, and needs and may use no network: its content security policy names the one script and the one
style by their hashes. Data that is too large is cut, and the page says so.
"""

from __future__ import annotations

import base64
import hashlib
import html
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from paceline._dashboard.answers import AboutAnswer, get_about, get_detail, get_reader
from paceline._dashboard.files import load_page_file
from paceline._view import logs
from paceline._view.listing import Listing
from paceline._view.model import LogLine, LogPage, Points, RunSnapshot, SearchDetail, UsageSeries, encode
from paceline._view.run_reader import RunReader

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation

MAX_POINTS_PER_METRIC = 2000
MAX_POINTS = 100_000
"""Over all metrics; each is included twice, by step and by time."""
MAX_METRICS = 500
LINES_PER_LOG = 300
MAX_LINE_CHARS = 2000
MAX_LOG_CHARS = 2_000_000
MAX_LOGS = 64
MAX_USAGE_SERIES = 64

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


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    about: AboutAnswer
    detail: RunSnapshot
    points: dict[str, list[Points]] = msgspec.field(default_factory=lambda: {"step": [], "time": []})
    use: list[UsageSeries] = msgspec.field(default_factory=list)
    logs: list[ReportLog] = msgspec.field(default_factory=list)
    search: SearchDetail | None = None
    cut: list[str] = msgspec.field(default_factory=list)


def build_report(listing: Listing) -> bytes:
    """Build the page of the run or search at the root of a listing. Raises `StorageError` if there is none."""
    if "." not in {entry.id for entry in listing.summaries()}:
        RunReader(listing.root).summary()  # Raises the specific error.
    return build_listed_report(listing, ".")


def build_listed_report(listing: Listing, run: str) -> bytes:
    """Build the page of a run or search by its id in a listing."""
    return render_report(collect_report_data(listing, run))


def collect_report_data(listing: Listing, run: str) -> ReportData:
    detail = get_detail(listing, run)
    about = get_about(detail.summary.path, control=False)
    if detail.summary.kind == "search":
        return ReportData(about=about, detail=detail, search=listing.search_detail(run))
    reader = get_reader(listing, run)
    cut: list[str] = []
    names = _limit_items(detail.metric_names, MAX_METRICS, "metrics", cut)
    at_most = max(min(MAX_POINTS_PER_METRIC, MAX_POINTS // max(len(names), 1)), 50)
    axes: tuple[Literal["step", "time"], ...] = ("step", "time")
    points: dict[str, list[Points]] = {x: reader.points(names, x=x, at_most=at_most) for x in axes}
    if not all(entry.whole for entry in points["step"]):
        what = "each the mean of its neighbours with their minimum and maximum"
        cut.append(f"of each metric, {at_most:,} points, {what}")
    return ReportData(
        about=about,
        detail=detail,
        points=points,
        use=_limit_items(reader.usage_series(), MAX_USAGE_SERIES, "ranks' use over time", cut),
        logs=_collect_logs(reader.location, detail, cut),
        cut=cut,
    )


def render_report(values: ReportData) -> bytes:
    page = load_page_file("index.html").data.decode()
    style = load_page_file("app.css").data.decode()
    # Anywhere in an inline script, these two would end the script or begin a comment.
    script = load_page_file("app.js").data.decode().replace("</script", "<\\/script").replace("<!--", "<\\!--")
    data = encode(values).replace(b"<", b"\\u003c").decode()
    policy = _CSP.format(script=_csp_hash(script), style=_csp_hash(style))
    title = f"<title>{html.escape(values.detail.summary.name)} - Paceline</title>"
    data = f'<script type="application/json" id="report">{data}</script>'
    for old, new in (
        (_TITLE, f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{title}'),
        (_STYLE, f"<style>{style}</style>"),
        (_SCRIPT, f'{data}\n<script type="module">{script}</script>'),
    ):
        before, separator, after = page.partition(old)
        if not separator:
            raise AssertionError(f"the page has no {old}")
        page = before + new + after
    return page.encode()


def _collect_logs(location: RunLocation, detail: RunSnapshot, cut: list[str]) -> list[ReportLog]:
    collected, num_chars_left = [], MAX_LOG_CHARS
    # Last attempt first: if not all logs fit, it is the one of interest.
    newest = sorted(detail.logs, key=lambda file: (-file.attempt, file.rank))
    for file in _limit_items(newest, MAX_LOGS, "logs", cut):
        page = logs.read_log_page(location, file.attempt, file.rank, limit=LINES_PER_LOG)
        lines = tuple(LogLine(line.offset, line.text[:MAX_LINE_CHARS]) for line in page.lines)
        size = sum(len(line.text) for line in lines)
        if size > num_chars_left:
            cut.append(f"the log of {file.name}")
            continue
        num_chars_left -= size
        collected.append(ReportLog(file.attempt, file.rank, msgspec.structs.replace(page, lines=lines)))
    if any(entry.page.before for entry in collected):
        cut.append(f"of each log, the last {LINES_PER_LOG} lines")
    return collected


def _limit_items(items: Any, limit: int, noun: str, cut: list[str]) -> Any:
    if len(items) > limit:
        cut.append(f"{limit} of {len(items):,} {noun}")
    return items[:limit]


def _csp_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
