"""Render a run snapshot as a block of styled lines, for a terminal or a notebook, or as one line. Pure functions.

Lines that are too long wrap. If there are too few lines, the less important rows are folded into one. All text is
escaped here.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from paceline._view import formatting
from paceline._view.formatting import sparkline
from paceline._view.model import TimeBreakdown, Worker
from paceline._view.pace import COUNTERS
from paceline.train.display.run_snapshot import MetricSnapshot, RunSnapshot

StyledPiece = tuple[str, str]
"""A text and its style: `bold`, `dim`, a colour, several of these, or empty."""
StyledLine = tuple[StyledPiece, ...]

MAX_METRICS = 10
MAX_WORKERS = 8
_MAX_SPARKLINE_WIDTH = 32
_MIN_WIDTH = 20
_STATES_BY_INTEREST = ("failed", "hangs", "gone", "starting", "returned", "running")
_STYLES = {"failed": "bold red", "hangs": "bold red", "gone": "red", "starting": "dim", "returned": "green"}
_COUNTER_NAMES = {name for names in COUNTERS.values() for name in names}
"""Counters only ever rise, so they are not plotted."""
_TIME_PARTS = ("data", "compute", "report", "checkpoint", "starting", "between")


def render_block(snapshot: RunSnapshot, width: int, height: int) -> list[StyledLine]:
    """Render at most `width` columns and `height` lines; the essential lines are always kept."""
    width = max(_MIN_WIDTH, width)
    above = _flow_pieces(_format_heading(snapshot), width, first=0)
    if snapshot.num_reports:
        above += _flow_pieces([(f"report {snapshot.num_reports}", ""), *_format_rates(snapshot)], width)
    below = [*_flow_pieces(_format_checkpoint(snapshot), width), *_flow_pieces(_format_time_shares(snapshot), width)]
    if snapshot.hang:
        below += _flow_pieces([("hang", "bold red"), (formatting.escape_unprintable(snapshot.hang), "red")], width)
    room = height - 1 - len(above) - len(below)
    num_workers = min(len(snapshot.workers), MAX_WORKERS, max(0, room // 2 - 1))
    workers = _format_workers(snapshot.workers, num_workers, width)
    metrics = _format_metrics(snapshot.metrics, max(1, min(MAX_METRICS, room - len(workers))), width)
    return [_truncate_line(line, width) for line in (*above, *metrics, *below, *workers)]


def format_progress_line(snapshot: RunSnapshot) -> str:
    """Render the essentials in one line, for a file."""
    parts = [_format_progress(snapshot)]
    if snapshot.metrics:
        values = formatting.values({metric.name: metric.value for metric in snapshot.metrics[:MAX_METRICS]})
        parts[0] += f": {values}"
    if snapshot.checkpoint is not None:
        age = f" {formatting.age(snapshot.checkpoint_age_s)}" if snapshot.checkpoint_age_s is not None else ""
        parts.append(f"{snapshot.checkpoint.name}{age}")
    if snapshot.spent is not None:
        parts.append(", ".join(f"{name} {share} %" for name, share in compute_time_shares(snapshot.spent) if share))
    if snapshot.hang:
        parts.append(formatting.escape_unprintable(snapshot.hang))
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


def display_width(text: str) -> int:
    """The width in terminal columns."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def to_plain_text(line: StyledLine) -> str:
    return "".join(text for text, _ in line)


def _format_heading(snapshot: RunSnapshot) -> list[StyledPiece]:
    pieces = [(f"run {formatting.escape_unprintable(snapshot.name)}", "bold")]
    if snapshot.attempt > 1:
        pieces.append((f"attempt {snapshot.attempt}", "yellow"))
    pieces += [(snapshot.state, "cyan"), (formatting.duration(snapshot.elapsed_s), "")]
    pacing = snapshot.pacing
    if pacing.progress is not None and pacing.done is not None:
        done, goal = (formatting.number(_drop_zero_fraction(each)) for each in (pacing.done, pacing.goal))
        pieces += [(f"{pacing.kind} {done} of {goal}", ""), (f"{100 * pacing.progress:.0f} %", "")]
    if pacing.left_s:
        pieces.append((f"{formatting.duration(pacing.left_s)} left", "bold"))
    return pieces


def _format_progress(snapshot: RunSnapshot) -> str:
    """`report 12 after 4:07, 3 reports/s, 40 %, 6:10 left`."""
    report = f"report {snapshot.num_reports}" if snapshot.num_reports else "no report yet"
    parts = [f"{report} after {formatting.duration(snapshot.elapsed_s)}"]
    if not snapshot.metrics and snapshot.state != "running":
        parts.append(snapshot.state)
    parts += [text for text, _ in _format_rates(snapshot)]
    if snapshot.pacing.progress is not None:
        parts.append(f"{100 * snapshot.pacing.progress:.0f} %")
    if snapshot.pacing.left_s:
        parts.append(f"{formatting.duration(snapshot.pacing.left_s)} left")
    return ", ".join(parts)


def _format_rates(snapshot: RunSnapshot) -> list[StyledPiece]:
    pacing = snapshot.pacing
    rates = {"step": pacing.steps_per_s, "epoch": pacing.epochs_per_s}
    pieces = [(formatting.rate(rate, noun), "") for noun, rate in rates.items() if rate is not None]
    reports = pacing.reports_per_s
    # If each report is a step or an epoch, that rate is enough.
    if reports is None or any(rate and math.isclose(rate, reports, rel_tol=0.01) for rate in rates.values()):
        return pieces
    return [(formatting.rate(reports, "report"), ""), *pieces]


def _format_metrics(metrics: Sequence[MetricSnapshot], at_most: int, width: int) -> list[StyledLine]:
    shown = metrics if len(metrics) <= at_most else metrics[: at_most - 1]
    names = [formatting.escape_unprintable(metric.name) for metric in shown]
    values = [formatting.value(metric.value) for metric in shown]
    name_width = min(max(map(display_width, names), default=0), width // 3)
    value_width = min(max(map(display_width, values), default=0), width // 3)
    room = min(_MAX_SPARKLINE_WIDTH, width - name_width - value_width - 6)
    lines: list[StyledLine] = []
    for metric, name, value in zip(shown, names, values, strict=True):
        head = f"  {_pad_text(name, name_width)}  {_pad_text(value, value_width)}"
        is_drawn = len(metric.trace) > 1 and metric.name.rpartition("/")[2] not in _COUNTER_NAMES
        spark = sparkline(metric.trace, room) if is_drawn else ""
        lines.append(((head, ""), (f"  {spark}", "cyan")) if spark else ((head.rstrip(), ""),))
    if len(shown) < len(metrics):
        lines.append(((f"  and {formatting.format_count(len(metrics) - len(shown), 'metric')} more", "dim"),))
    return lines


def _format_checkpoint(snapshot: RunSnapshot) -> list[StyledPiece]:
    record = snapshot.checkpoint
    if record is None:
        return [("no checkpoint", "dim")] if snapshot.num_reports else []
    pieces = [(record.name, "")]
    if record.num_bytes:
        pieces.append((formatting.size(record.num_bytes), ""))
    if snapshot.checkpoint_age_s is not None:
        pieces.append((formatting.age(snapshot.checkpoint_age_s), ""))
    return pieces


def _format_time_shares(snapshot: RunSnapshot) -> list[StyledPiece]:
    if snapshot.spent is None:
        return []
    pieces: list[StyledPiece] = [("time", "dim")]
    pieces += [(f"{name} {share} %", "") for name, share in compute_time_shares(snapshot.spent) if share]
    if snapshot.limited_by:
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
    widths = {name: max(map(display_width, (name, *texts))) for name, texts in filled.items()}
    while len(filled) > 2 and sum(widths[name] + 2 for name in filled) > width:
        least = next(name for name in ("host", "cores", "gpu memory", "device", "memory", "", "rank") if name in filled)
        filled.pop(least)
    right = {"rank", "memory", "cores"}
    lines: list[StyledLine] = [tuple((f"  {_pad_text(name, widths[name], name in right)}", "dim") for name in filled)]
    for worker, row in zip(workers, zip(*filled.values(), strict=True), strict=True):
        cells = (_pad_text(text, widths[name], name in right) for name, text in zip(filled, row, strict=True))
        lines.append(tuple((f"  {cell}", _STYLES.get(worker.state, "")) for cell in cells))
    return lines


def _format_gpu_memory(worker: Worker) -> str:
    if not worker.gpus:
        return ""
    used, total = sum(gpu.used_bytes for gpu in worker.gpus), sum(gpu.total_bytes for gpu in worker.gpus)
    return f"{formatting.size(used)} of {formatting.size(total)}"


def _flow_pieces(pieces: Iterable[StyledPiece], width: int, first: int = 2) -> list[StyledLine]:
    """Put pieces next to each other and wrap them at `width`."""
    lines: list[list[StyledPiece]] = []
    used = 0
    for text, style in pieces:
        if not lines or used + 2 + display_width(text) > width:
            indent = first if not lines else first + 2
            lines.append([(" " * indent, ""), (text, style)])
            used = indent + display_width(text)
        else:
            lines[-1] += [("  ", ""), (text, style)]
            used += 2 + display_width(text)
    return [tuple(line) for line in lines]


def _pad_text(text: str, width: int, right: bool = False) -> str:
    if display_width(text) > width:
        text = to_plain_text(_truncate_line(((text, ""),), width))
    pad = " " * (width - display_width(text))
    return f"{pad}{text}" if right else f"{text}{pad}"


def _truncate_line(line: StyledLine, width: int) -> StyledLine:
    if display_width(to_plain_text(line)) <= width:
        return line
    pieces: list[StyledPiece] = []
    room = width - 1
    for text, style in line:
        part = ""
        for character in text:
            if display_width(character) > room:
                return (*pieces, (f"{part}…", style))
            room -= display_width(character)
            part += character
        pieces.append((part, style))
    return tuple(pieces)


def _drop_zero_fraction(number: float | None) -> float | None:
    return int(number) if number is not None and number == int(number) else number
