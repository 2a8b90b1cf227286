"""Render the snapshot of a run as a block of styled lines, or as one line. Pure functions.

Lines that are too long wrap. If there are too few lines, the less important rows are folded into one. All text is
escaped here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from paceline._view import formatting
from paceline._view.formatting import display_width, sparkline
from paceline._view.model import RunSnapshot, TimeBreakdown, Value, Worker
from paceline._view.pace import COUNTERS
from paceline._view.projection import CONSUMER
from paceline.train.display.styled_lines import (
    StyledLine,
    StyledPiece,
    columns_width,
    flow_pieces,
    format_columns,
    pad_text,
    truncate_line,
)

Traces = Mapping[str, Sequence[float | None]]
"""Recent values of metrics, by name."""

MAX_METRICS = 10
MAX_WORKERS = 8
_MAX_SPARKLINE_WIDTH = 32
_MIN_WIDTH = 20
_STATES_BY_INTEREST = ("failed", "hangs", "gone", "starting", "returned", "running")
_STYLES = {"failed": "bold red", "hangs": "bold red", "gone": "red", "starting": "dim", "returned": "green"}
_COLUMNS_BY_INTEREST = ("host", "cores", "gpu memory", "device", "memory", "", "rank")
"""The least interesting first: those are dropped where the terminal is too narrow."""
_COUNTER_NAMES = {name for names in COUNTERS.values() for name in names}
"""Counters only ever rise, so they are not plotted."""
_TIME_PARTS = ("data", "compute", "report", "checkpoint", "starting", "between")


def render_block(snapshot: RunSnapshot, traces: Traces, now: float, width: int, height: int) -> list[StyledLine]:
    """Render at most `width` columns and `height` lines; the essential lines are always kept."""
    width, summary = max(_MIN_WIDTH, width), snapshot.summary
    above = flow_pieces(_format_heading(snapshot, now), width, first=0)
    if summary.num_reports:
        above += flow_pieces([(f"report {summary.num_reports}", ""), *_format_rates(snapshot)], width)
    below = [*flow_pieces(_format_checkpoint(snapshot, now), width), *flow_pieces(_format_time_shares(snapshot), width)]
    if summary.hang:
        below += flow_pieces([("hang", "bold red"), (formatting.escape_unprintable(summary.hang), "red")], width)
    room = height - 1 - len(above) - len(below)
    all_workers = [worker for attempt in snapshot.attempts if not attempt.ending for worker in attempt.workers]
    num_workers = min(len(all_workers), MAX_WORKERS, max(0, room // 2 - 1))
    workers = _format_workers(all_workers, num_workers, width)
    metrics = _format_metrics(summary.metrics, traces, max(1, min(MAX_METRICS, room - len(workers))), width)
    return [truncate_line(line, width) for line in (*above, *metrics, *below, *workers)]


def format_progress_line(snapshot: RunSnapshot, now: float) -> str:
    """Render the essentials in one line, for a file."""
    summary = snapshot.summary
    parts = [_format_progress(snapshot, now)]
    if summary.metrics:
        parts[0] += f": {formatting.values(dict([*summary.metrics.items()][:MAX_METRICS]))}"
    for checkpoint in snapshot.checkpoints[-1:]:
        age = f" {formatting.age(now - checkpoint.at)}" if checkpoint.at else ""
        parts.append(f"{checkpoint.name}{age}")
    if shares := compute_time_shares(snapshot.spent):
        parts.append(", ".join(f"{name} {share} %" for name, share in shares if share))
    if summary.hang:
        parts.append(formatting.escape_unprintable(summary.hang))
    return "; ".join(parts)


def compute_time_shares(spent: TimeBreakdown) -> list[tuple[str, int]]:
    """Return where the time went, in whole percent that add up to 100."""
    amounts = {name: max(0.0, getattr(spent, f"{name}_s")) for name in _TIME_PARTS}
    total = sum(amounts.values())
    if not total > 0:
        return []
    exact = {name: 100 * amount / total for name, amount in amounts.items()}
    shares = {name: int(share) for name, share in exact.items()}
    by_rest = sorted(exact, key=lambda name: shares[name] - exact[name])
    for name in by_rest[: 100 - sum(shares.values())]:
        shares[name] += 1
    return [*shares.items()]


def _format_heading(snapshot: RunSnapshot, now: float) -> list[StyledPiece]:
    summary, pace = snapshot.summary, snapshot.pace
    pieces = [(f"run {formatting.escape_unprintable(summary.name)}", "bold")]
    if summary.attempt > 1:
        pieces.append((f"attempt {summary.attempt}", "yellow"))
    pieces += [(summary.state, "cyan"), (formatting.duration(now - summary.began_at), "")]
    if pace.progress is not None and pace.done is not None:
        done, goal = (formatting.number(_drop_zero_fraction(each)) for each in (pace.done, pace.goal))
        pieces += [(f"{pace.kind} {done} of {goal}", ""), (f"{100 * pace.progress:.0f} %", "")]
    if pace.left_s:
        pieces.append((f"{formatting.duration(pace.left_s)} left", "bold"))
    return pieces


def _format_progress(snapshot: RunSnapshot, now: float) -> str:
    """`report 12 after 4:07, 3 reports/s, 40 %, 6:10 left`."""
    summary, pace = snapshot.summary, snapshot.pace
    report = f"report {summary.num_reports}" if summary.num_reports else "no report yet"
    parts = [f"{report} after {formatting.duration(now - summary.began_at)}"]
    if not summary.metrics and summary.state != "running":
        parts.append(summary.state)
    parts += [text for text, _ in _format_rates(snapshot)]
    if pace.progress is not None:
        parts.append(f"{100 * pace.progress:.0f} %")
    if pace.left_s:
        parts.append(f"{formatting.duration(pace.left_s)} left")
    return ", ".join(parts)


def _format_rates(snapshot: RunSnapshot) -> list[StyledPiece]:
    pace = snapshot.pace
    rates = {"step": pace.steps_per_s, "epoch": pace.epochs_per_s}
    pieces = [(formatting.rate(rate, noun), "") for noun, rate in rates.items() if rate is not None]
    reports = pace.reports_per_s
    # If each report is a step or an epoch, that rate is enough.
    if reports is None or any(rate and math.isclose(rate, reports, rel_tol=0.01) for rate in rates.values()):
        return pieces
    return [(formatting.rate(reports, "report"), ""), *pieces]


def _format_metrics(metrics: Mapping[str, Value], traces: Traces, at_most: int, width: int) -> list[StyledLine]:
    shown = [*metrics.items()][: at_most if len(metrics) <= at_most else at_most - 1]
    names = [formatting.escape_unprintable(name) for name, _ in shown]
    values = [formatting.value(value) for _, value in shown]
    name_width = min(max(map(display_width, names), default=0), width // 3)
    value_width = min(max(map(display_width, values), default=0), width // 3)
    room = min(_MAX_SPARKLINE_WIDTH, width - name_width - value_width - 6)
    lines: list[StyledLine] = []
    for (metric, _), name, value in zip(shown, names, values, strict=True):
        head = f"  {pad_text(name, name_width)}  {pad_text(value, value_width)}"
        trace = traces.get(metric, ())
        is_drawn = len(trace) > 1 and metric.rpartition("/")[2] not in _COUNTER_NAMES
        spark = sparkline(trace, room) if is_drawn else ""
        lines.append(((head, ""), (f"  {spark}", "cyan")) if spark else ((head.rstrip(), ""),))
    if len(shown) < len(metrics):
        lines.append(((f"  and {formatting.format_count(len(metrics) - len(shown), 'metric')} more", "dim"),))
    return lines


def _format_checkpoint(snapshot: RunSnapshot, now: float) -> list[StyledPiece]:
    if not snapshot.checkpoints:
        return [("no checkpoint", "dim")] if snapshot.summary.num_reports else []
    latest = snapshot.checkpoints[-1]
    pieces = [latest.name]
    if latest.num_bytes:
        pieces.append(formatting.size(latest.num_bytes))
    if latest.at:
        pieces.append(formatting.age(now - latest.at))
    return [(piece, "") for piece in pieces]


def _format_time_shares(snapshot: RunSnapshot) -> list[StyledPiece]:
    shares = compute_time_shares(snapshot.spent)
    if not shares:
        return []
    pieces: list[StyledPiece] = [("time", "dim")]
    pieces += [(f"{name} {share} %", "") for name, share in shares if share]
    if snapshot.limited_by not in (None, CONSUMER):
        pieces.append((f"waits for {formatting.escape_unprintable(snapshot.limited_by)}", "yellow"))
    return pieces


def _format_workers(workers: Sequence[Worker], at_most: int, width: int) -> list[StyledLine]:
    """Show the most interesting workers, by rank, and the others in one line."""
    by_interest = sorted(workers, key=lambda worker: (_STATES_BY_INTEREST.index(worker.state), worker.rank))
    chosen = sorted(by_interest[:at_most], key=lambda worker: worker.rank)
    others = by_interest[at_most:]
    lines = _format_worker_table(chosen, width) if chosen else []
    if others:
        states = Counter(worker.state for worker in others)
        counts = ", ".join(f"{number} {state}" for state, number in states.items())
        memory = sorted(worker.rss_bytes for worker in others if worker.rss_bytes)
        each = f", {formatting.size(memory[0])} to {formatting.size(memory[-1])} each" if memory else ""
        more = f"  and {len(others)} more workers: {counts}{each}" if chosen else f"  workers: {counts}{each}"
        lines.append(((more, "dim"),))
    return lines


def _format_worker_table(workers: Sequence[Worker], width: int) -> list[StyledLine]:
    hosts = {worker.host for worker in workers}
    columns: dict[str, list[str]] = {
        "rank": [str(worker.rank) for worker in workers],
        "state": [worker.state for worker in workers],
        "device": [formatting.escape_unprintable(worker.device) for worker in workers],
        "memory": [formatting.size(worker.rss_bytes) if worker.rss_bytes is not None else "" for worker in workers],
        "gpu memory": [_format_gpu_memory(worker) for worker in workers],
        "cores": [f"{worker.cpu:.1f}" if worker.cpu is not None else "" for worker in workers],
        "host": [formatting.escape_unprintable(worker.host) if len(hosts) > 1 else "" for worker in workers],
        "": [formatting.escape_unprintable(formatting.first_line(worker.failure or "")) for worker in workers],
    }
    filled = {name: texts for name, texts in columns.items() if any(texts)}
    while len(filled) > 2 and columns_width([*filled.items()]) > width:
        filled.pop(next(name for name in _COLUMNS_BY_INTEREST if name in filled))
    right = {"rank", "memory", "cores"}
    return format_columns([*filled.items()], right=right, style=lambda row, name: _STYLES.get(workers[row].state, ""))


def _format_gpu_memory(worker: Worker) -> str:
    if not worker.gpus:
        return ""
    used, total = sum(gpu.used_bytes for gpu in worker.gpus), sum(gpu.total_bytes for gpu in worker.gpus)
    return f"{formatting.size(used)} of {formatting.size(total)}"


def _drop_zero_fraction(number: float | None) -> float | None:
    return int(number) if number is not None and number == int(number) else number
